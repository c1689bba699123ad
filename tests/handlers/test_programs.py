"""Whose fault it is when a scored program does not come to its end."""

import contextlib
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.errors import SandboxError, SandboxGone
from sandbox.fake import FakeProvider
from sandbox.protocol import ProcessResult, Sandbox, SandboxSpec
from tests.handlers.conftest import Stages
from workers.handler import NodeCrowded, Score
from workers.handlers import programs
from workers.handlers.clocks import FAIR, PATIENT_WALL, WALL, EvalClock
from workers.handlers.code.family import Code
from workers.handlers.human_eval import HumanEval
from workers.handlers.programs import Tried

pytestmark = pytest.mark.anyio
RIGHT = Tried(Score(reward=1.0))
STARVED = Tried(Score(reward=0.0, note="late"), starved=True)
CUT = Tried(Score(reward=0.0, note="cut"), cut=True)
HARMLESS = ProcessResult(exit_code=0, stdout=b"42\n", stderr=b"")


def clock(*, budget_s: float = 600.0, repeated: bool = False) -> EvalClock:
    """A clock that begins now, on a node that has CPUs."""
    now = time.monotonic()
    return EvalClock(now, now + budget_s, waited_us=1 << 60, repeated=repeated)


def context(*answers: Any) -> Any:
    """EVAL's, whose sandboxes answer the harmless program so, one after the other."""
    provider = FakeProvider(answers)
    return SimpleNamespace(sandbox=lambda: provider.create(SandboxSpec(owner="test")))


@pytest.mark.parametrize(
    ("ends", "sandboxes", "score"),
    [
        ([RIGHT], 1, RIGHT.score),
        ([STARVED, RIGHT], 2, RIGHT.score),
        ([STARVED, STARVED], 2, STARVED.score),
        ([SandboxGone("dead"), RIGHT], 2, RIGHT.score),
        (
            [SandboxGone("dead"), SandboxGone("dead")],
            3,
            Score(reward=0.0, note="its sandbox failed twice, where a harmless program runs: dead"),
        ),
    ],
)
async def test_a_program_is_tried_twice_before_it_is_to_blame(ends: list[Any], sandboxes: int, score: Score) -> None:
    left, walls = list(ends), []

    async def attempt(_: Sandbox, wall: int) -> Tried:
        walls.append(wall)
        end = left.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    assert await programs.scored(context(*[HARMLESS] * sandboxes), clock(), attempt, cpu_s=1.0) == score
    assert walls == [WALL, PATIENT_WALL][: len(ends)]


async def test_sandboxes_that_fail_without_it_too_are_not_its_fault() -> None:
    async def attempt(_: Sandbox, wall: int) -> Tried:
        raise SandboxGone(f"dead after {wall}")

    broken = ProcessResult(exit_code=1, stdout=b"", stderr=b"no memory")
    with pytest.raises(SandboxError, match="no python3 that can run tests"):
        await programs.scored(context(HARMLESS, HARMLESS, broken), clock(), attempt, cpu_s=1.0)


@pytest.mark.parametrize("repeated", [False, True], ids=["first", "repeated"])
async def test_a_program_that_evals_end_cut_short_is_not_to_blame(repeated: bool) -> None:
    """Its sandbox took EVAL's time."""

    async def attempt(_: Sandbox, wall: int) -> Tried:
        return Tried(CUT.score, cut=True)

    with pytest.raises(NodeCrowded, match="EVAL's time was over when it had run for 0 s"):
        await programs.scored(context(HARMLESS), clock(repeated=repeated), attempt, cpu_s=1.0)


@pytest.mark.parametrize("ends", [[CUT], [SandboxGone("ended by it"), CUT]], ids=["one sandbox", "two sandboxes"])
async def test_a_program_that_had_its_time_is_to_blame_when_evals_end_cuts_it(ends: list[Any]) -> None:
    """No program gets another try by sleeping until EVAL's end, nor by ending its sandbox first."""
    left = list(ends)

    async def attempt(_: Sandbox, wall: int) -> Tried:
        began = time.monotonic()
        while time.monotonic() < began + 0.1 / len(ends):
            pass
        end = left.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    given = clock(budget_s=0.1 / FAIR)
    assert await programs.scored(context(*[HARMLESS] * len(ends)), given, attempt, cpu_s=1.0) == CUT.score


@pytest.mark.parametrize(
    ("had_s", "repeated", "starved", "blamed"),
    [
        (79.0, True, False, False),
        (80.0, True, False, True),
        (80.0, False, False, True),
        (80.0, False, True, False),
        (80.0, True, True, True),
    ],
    ids=["too little", "its own limit", "its own limit, first", "starved", "starved again"],
)
def test_evals_end_counts_only_after_the_time_of_the_programs_own_limits(
    had_s: float, repeated: bool, starved: bool, blamed: bool
) -> None:
    with contextlib.nullcontext() if blamed else pytest.raises(NodeCrowded):
        clock(repeated=repeated).cut("late", had_s=had_s, own_s=80.0, starved=starved)


def test_where_evals_budget_is_below_the_limits_half_of_it_is_a_programs_time() -> None:
    given = clock(budget_s=60.0, repeated=True)
    with pytest.raises(NodeCrowded):
        given.cut("late", had_s=29.0, own_s=80.0)
    given.cut("late", had_s=30.0, own_s=80.0)


def test_a_program_over_its_own_limits_is_not_cut_by_evals_end() -> None:
    def ended(seconds: float, cpu_seconds: float = 0.0, *, timed_out: bool = True) -> bool:
        result = ProcessResult(
            exit_code=137, stdout=b"", stderr=b"", timed_out=timed_out, seconds=seconds, cpu_seconds=cpu_seconds
        )
        return programs.was_cut(result, cpu_s=2.0, wall=WALL)

    assert ended(7.9)
    assert not ended(8.0)
    assert not ended(7.9, 2.1)
    assert not ended(7.9, timed_out=False)


@pytest.mark.parametrize("family", [HumanEval, Code])
async def test_a_sandbox_that_takes_evals_time_makes_no_right_program_wrong(
    stages: Stages, family: type[HumanEval] | type[Code]
) -> None:
    """A slow pull of an image, to the program, is a budget that is nearly over."""
    right = family.references[0]

    async def pulled() -> Sandbox:
        began = time.monotonic()
        box = await stages.provider.create(SandboxSpec(owner="test"))
        while time.monotonic() < began + 1.0:
            pass
        return box

    given = SimpleNamespace(
        job=SimpleNamespace(payload=right.payload, limits=SimpleNamespace(eval_ms=1000)),
        sealed=right.sealed, export=right.export, repeated=True, sandbox=pulled,
    )  # fmt: skip
    with pytest.raises(NodeCrowded, match="the rest went elsewhere"):
        await family().eval(cast("Any", given))


async def test_cpu_time_of_a_program_and_its_children_is_counted(stages: Stages) -> None:
    box = await stages.provider.create(SandboxSpec(owner="test"))
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    try:
        for text in (burn, child):
            result = await programs.run(box, ["python3", "-I", "-c", text], cpu_s=30.0, wall=WALL, left_s=100.0)
            assert 0.5 <= result.cpu_seconds < 5.0
            assert programs.time_fault(result, 0.4) == "it used more than 0.4 s of CPU time"
        slept = await programs.run(box, ["sleep", "60"], cpu_s=0.1, wall=WALL, left_s=100.0)
        assert (slept.timed_out, programs.was_starved(slept, 0.1)) == (True, False)
    finally:
        await box.close()


async def test_a_program_whose_own_processes_take_the_time_is_not_starved(stages: Stages) -> None:
    """What they used is counted while they live, so a program cannot make its node look crowded."""
    box = await stages.provider.create(SandboxSpec(owner="test"))
    spin = "for n in $(seq 30); do (while :; do :; done) & done; wait"
    try:
        crowd = await programs.run(box, ["sh", "-c", spin], cpu_s=1.0, wall=WALL, left_s=100.0)
        assert crowd.timed_out
        assert crowd.cpu_seconds > 0.1, "more than the one that waited for them"
        assert programs.was_starved(crowd, 2 * crowd.cpu_seconds), "a control: they did wait for each other"
        assert not programs.was_starved(crowd, crowd.cpu_seconds / 2)
    finally:
        await box.close()


async def test_a_budget_of_eval_that_is_used_up_is_no_time_for_a_program(stages: Stages) -> None:
    box = await stages.provider.create(SandboxSpec(owner="test"))
    try:
        assert (await programs.run(box, ["sleep", "60"], cpu_s=9.0, wall=WALL, left_s=-1.0)).timed_out
    finally:
        await box.close()


@pytest.mark.parametrize("family", [HumanEval, Code])
async def test_reference_solutions_earn_what_they_say(stages: Stages, family: type[HumanEval] | type[Code]) -> None:
    handler = family()
    for reference in handler.references:
        row = {**reference.payload, **reference.sealed}
        assert (await stages.score(handler, row, reference.export)).reward == reference.reward
