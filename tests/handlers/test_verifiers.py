"""An environment of verifiers, as its author wrote it, asks and scores; what cannot be run here is refused."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.chat import call
from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.rows import BadRow
from workers.handlers.verifiers.environments import LISTED
from workers.handlers.verifiers.family import Verifiers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900), pytest.mark.xdist_group("verifiers")]
ENVIRONMENT = """
import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: int


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=0.75)
    async def right(self, trace) -> float:
        return float(eval(trace.last_reply or "None") == self.data.answer)  # careless, as scorers are

    @vf.reward(weight=0.25)
    async def brief(self, trace) -> float:
        return float(trace.num_turns <= 3 and trace.last_reply == str(self.data.answer))

    @vf.metric
    async def turns(self, trace) -> float:
        return trace.num_turns


class Config(vf.TasksetConfig):
    words: str = "What is"


class Sums(vf.Taskset[SumTask, Config]):
    def load(self):
        for number in range(3):
            data = Sum(prompt=f"{self.config.words} {number} + 4?", system_prompt="Answer briefly.", answer=number + 4)
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
"""
UNFIT = {
    "unfit_setup": (r"in a runtime of verifiers \(setup\)", "    async def setup(self, trace, runtime): ..."),
    "unfit_score": (r"in a runtime of verifiers \(files\)", "    @vf.reward\n    async def files(self, runtime): ..."),
    "unfit_stop": ("takes part in the rollout", "    @vf.stop\n    async def enough(self, trace): ..."),
    "unfit_box": ("needs a container of its own", "    NEEDS_CONTAINER = True"),
}
RAISES = """    @vf.reward
    async def never(self, trace) -> float:
        raise ValueError("broken")"""
ROW: dict[str, Any] = {"env_id": "sums", "index": 1}
SUITE = Suite(
    family="verifiers",
    oracle=[(ROW, ["5"]), ({**ROW, "index": 0, "config": {"words": "Add:"}}, ["4"])],
    hacks={
        "wrong": (ROW, ["6"]),
        "takes all its time": (ROW, ["9**9**9**9"]),
        "ends the scorer": (ROW, ["__import__('os')._exit(0)"]),
        "takes all memory": (ROW, ["len(bytearray(3 << 30)) and __import__('os').abort()"]),
    },
)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Has the environments in reach; it takes seconds to start."""
    place = tmp_path_factory.mktemp("environments")
    (place / "sums.py").write_text(ENVIRONMENT)
    before = ENVIRONMENT.index("    @vf.metric")
    for name, lines in {**{name: lines for name, (_, lines) in UNFIT.items()}, "raises": RAISES}.items():
        (place / f"{name}.py").write_text(f"{ENVIRONMENT[:before]}{lines}\n\n{ENVIRONMENT[before:]}")
    sys.path.insert(0, str(place))
    made = Forks("workers.handlers.verifiers.scoring", ForkLimits(cpu_s=2))
    yield made
    made.close()
    sys.path.remove(str(place))


@pytest.fixture
def family(scorer: Forks, monkeypatch: pytest.MonkeyPatch) -> Verifiers:
    monkeypatch.setenv(LISTED, ",".join(["sums", "raises", *UNFIT]))
    made = Verifiers()
    made._scorer = scorer
    return made


@pytest.mark.slow
async def test_the_oracle_earns_all_and_a_hack_nothing(stages: Stages, family: Verifiers) -> None:
    await held(SUITE, family, stages)


async def test_its_prompt_is_asked_and_its_rewards_and_metrics_are_parts(stages: Stages, family: Verifiers) -> None:
    ran, score = await stages.rollout(family, ROW, ["6 - 1"])
    prompt = ran.trajectory.segments[0].prompt_text
    assert prompt.index("Answer briefly.") < prompt.index("What is 1 + 4?")
    assert (score.reward, dict(score.parts)) == (0.75, {"right": 1.0, "brief": 0.0, "turns": 1.0})


async def test_with_tools_every_turn_is_told_to_its_rewards(stages: Stages, family: Verifiers) -> None:
    texts = [call("execute_bash", '{"command": "echo $((1 + 4))"}'), call("finish", '{"message": "5"}')]
    ran, score = await stages.rollout(family, {**ROW, "tools": True}, texts)
    assert [each["role"] for each in ran.export["said"]] == ["assistant", "tool", "assistant"]
    assert (score.reward, score.parts["turns"]) == (1.0, 2.0)


async def test_a_reward_that_raises_over_one_answer_gives_nothing(stages: Stages, family: Verifiers) -> None:
    """It takes the right answer, so this one is to blame."""
    _, score = await stages.rollout(family, ROW, ["five"])
    assert score.reward == 0.0
    assert re.match(r"the environment sums cannot score the answer: TaskError: .*NameError", score.note or "")


async def test_a_reward_that_takes_no_answer_gives_no_reward(stages: Stages, family: Verifiers) -> None:
    with pytest.raises(BadRow, match=r"takes no text, not even one that it must take: TaskError: .*broken"):
        await stages.rollout(family, {**ROW, "env_id": "raises"}, ["5"])


async def test_an_answer_cannot_kill_the_scorers_process(stages: Stages, family: Verifiers, scorer: Forks) -> None:
    """It is process 1 of its confinement: the answer earns nothing, and others that are scored are not disturbed."""
    before = await scorer._running()
    _, score = await stages.rollout(family, ROW, ["__import__('os').kill(__import__('os').getppid(), 9)"])
    assert score.reward == 0.0
    assert (await stages.rollout(family, ROW, ["5"]))[1].reward == 1.0
    assert await scorer._running() is before


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"env_id": "antigravity", "index": 0}, r"'antigravity' is on the operator's list \(PRORL_VERIFIERS\)"),
        ({**ROW, "index": 3}, "has 3 tasks, and none with index 3"),
        ({**ROW, "config": {"wombats": 1}}, "does not take this config: .*wombats"),
        ({**ROW, "config": {"task": {}}}, "may not set task: that is the operator's"),
        *(({"env_id": name, "index": 0}, told) for name, (told, _) in UNFIT.items()),
    ],
)
async def test_what_cannot_be_run_here_is_refused(
    stages: Stages, family: Verifiers, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadRow, match=f"(?s){reason}"):
        await stages.rollout(family, row, ["5"])
