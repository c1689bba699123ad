"""What comes out of a scorer's fork is read as bytes that an answer may have written, and its time as any other's."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sandbox.host.unprivileged import identity
from workers.handler import NodeCrowded
from workers.handlers import clocks, forks
from workers.handlers.blame import Blamed, Raised, blaming
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import ForkLimits, Forks

pytestmark = pytest.mark.anyio


class Reply(msgspec.Struct):
    right: bool


class Asked(msgspec.Struct):
    """A line in JSON."""

    line: str


@pytest.fixture
def scorer() -> Iterator[Forks]:
    made = Forks("tests.handlers.hostile_scorer", ForkLimits(cpu_s=1))
    yield made
    made.close()


@pytest.mark.parametrize(
    "written", ["\\0late nan\\n", "\\0late 9\\n", "\\0late ", "\\n", "\\xff\\n", "[[[[\\n", "{}\\n"]
)
async def test_no_bytes_of_a_fork_make_an_error(scorer: Forks, written: str) -> None:
    assert await scorer.ask_as(Reply, Asked(f"write {written}")) is None
    assert await scorer.ask_as(Reply, Asked('echo {"right": true}')) == Reply(True)


async def test_a_fork_cannot_answer_for_another(scorer: Forks) -> None:
    """Each has the connection of its own request only."""
    waiting = asyncio.create_task(scorer.ask(b"sleep"))
    assert await scorer.ask(b"echo x") == b"x\n"
    assert await scorer.ask(b"write forged\\n") in {None, b"forged\n"}
    assert await waiting is None


async def test_many_requests_at_a_time_each_get_their_own_answer(scorer: Forks) -> None:
    asked = [b"%d" % number for number in range(60)]
    told = await asyncio.gather(*(scorer.ask(b"echo " + each) for each in asked))
    assert told == [each + b"\n" for each in asked]
    assert await asyncio.gather(*(scorer.ask(b"die") for _ in asked)) == [None] * 60
    assert await scorer.ask(b"echo x") == b"x\n"


async def test_a_fork_cannot_take_the_next_request(scorer: Forks) -> None:
    assert await scorer.ask(b"listeners") == b"0\n"


@pytest.mark.parametrize("how", ["alone", "orphan", "parent"])
async def test_a_fork_that_wants_no_end_is_ended_and_its_process_lives_on(scorer: Forks, how: str) -> None:
    """It switches its alarm off, leaves its session, or aims at the process that started it."""
    assert await scorer.ask(b"echo x") == b"x\n"
    process = scorer._process
    assert await scorer.ask(f"stay {how}".encode()) is None
    assert await scorer.ask(b"echo x") == b"x\n"
    assert scorer._process is process
    assert process is not None
    assert await living(process.pid) == 2, "bubblewrap and its first process"


async def test_what_a_fork_leaves_behind_ends_with_it(scorer: Forks) -> None:
    assert await scorer.ask(b"stay answer") == b"answer\n"
    assert scorer._process is not None
    assert await living(scorer._process.pid) == 2


async def test_a_fork_sees_its_modules_and_nothing_else_of_the_project(scorer: Forks) -> None:
    project = Path(forks.__file__).parents[2]
    names = (*(each.name for each in project.iterdir()), "workers/handlers/forks.py")
    seen = {name for name in names if await scorer.ask(f"see {project / name}".encode()) == b"1\n"}
    assert {".git", ".state", "Makefile"} & set(names)
    installed = {name for name in names if Path(sys.prefix).is_relative_to(project / name)}
    assert seen - installed == {"prorl_mq", "sandbox", "tests", "workers", "workers/handlers/forks.py"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's processes have to become another user's")
async def test_a_scorer_of_root_is_nobody_on_the_host(scorer: Forks) -> None:
    assert await scorer.ask(b"echo x") == b"x\n"
    assert scorer._process is not None
    status = status_below(scorer._process.pid)
    user, group = map(str, identity())
    assert (status["Uid"].split(), status["Gid"].split()) == ([user] * 4, [group] * 4)
    assert {int(status[each], 16) for each in ("CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["Groups"].split() == []


def status_below(pid: int) -> dict[str, str]:
    """What the kernel shows of a process's only child."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = Path(f"/proc/{child}/status").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(":\t") for line in lines)}


@pytest.mark.parametrize("unconfined", [False, True], ids=["confined", "a control that is not"])
async def test_no_socket_of_the_host_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unconfined: bool
) -> None:
    """Not even one that lies beside a module."""
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    if unconfined:
        monkeypatch.setenv(forks.UNCONFINED, "unconfined")
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        for name, listener in (("stream", stream), ("datagram", datagram)):
            listener.bind(str(place / f"s.{name}"))
            (place / f"s.{name}").chmod(0o777)
        stream.listen()
        scorer = Forks("tests.handlers.hostile_scorer", ForkLimits(cpu_s=5))
        told = await scorer.ask(f"reach {place / 's'}".encode())
        seen = await scorer.ask(f"see {place / 's.stream'}".encode())
        scorer.close()
    assert (told, seen) == (b"done done done\n" if unconfined else b"EAFNOSUPPORT " * 2 + b"EAFNOSUPPORT\n", b"1\n")


async def living(pid: int) -> int:
    """How many processes there are from this one down, once they are as few as they get to be."""

    def below(pid: int) -> list[int]:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [pid, *(each for child in children for each in below(int(child)))]

    while len(below(pid)) > 2:
        await asyncio.sleep(0.01)
    return len(below(pid))


async def test_a_fork_that_only_waits_is_not_run_again(scorer: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    walls: list[int] = []
    asked = forks.Forks._asked

    async def noting(self: Forks, line: bytes, wall_s: int, given: AskTime) -> bytes | None:
        walls.append(wall_s)
        return await asked(self, line, wall_s, given)

    monkeypatch.setattr(forks.Forks, "_asked", noting)
    assert await scorer.ask(b"sleep") is None
    assert walls == [clocks.WALL]


async def blamed(scorer: Forks, said: bytes, canary: bytes, clock: EvalClock | None) -> bytes | Blamed:
    """As a family asks that has the texts of these lines."""

    async def attempt(line: bytes, given: AskTime) -> bytes:
        reply = await scorer.ask(line, given)
        if reply is None:
            raise Raised("it took too long", passing=True)
        return reply

    return await blaming(attempt, said, [canary], "the scorer", clock)


def clock(budget_s: float, *, used_s: float = 0.0) -> EvalClock:
    """A clock of which so much is used, on a node that has CPUs."""
    began = time.monotonic() - used_s
    return EvalClock(began, began + budget_s, waited_us=1 << 60, repeated=False)


@pytest.mark.parametrize("bounded", [True, False], ids=["in EVAL's time", "a control without it"])
async def test_a_slow_text_is_blamed_before_evals_budget_is_over(scorer: Forks, bounded: bool) -> None:
    """Each of its asks may take four seconds, both together more than there is; a reward of 0, not a time-out."""
    assert await scorer.ask(b"echo x") == b"x\n"
    with contextlib.nullcontext() if bounded else pytest.raises(TimeoutError):
        async with asyncio.timeout(6.0):
            end = await blamed(scorer, b"sleep", b"echo x", clock(1.0) if bounded else None)
            assert end == Blamed("it took too long", b"x\n")


@pytest.mark.parametrize(
    ("said", "canary", "used_s"),
    [(b"sleep", b"echo x", 9.0), (b"sleep", b"sleep", 8.0), (b"echo x", b"echo x", 10.0)],
    ids=["too little time for the text", "none for the canary", "none at all"],
)
async def test_a_text_is_not_to_blame_where_evals_time_went_elsewhere(
    scorer: Forks, said: bytes, canary: bytes, used_s: float
) -> None:
    assert await scorer.ask(b"echo x") == b"x\n"
    with pytest.raises(NodeCrowded, match="EVAL's time was over"):
        await blamed(scorer, said, canary, clock(10.0, used_s=used_s))


async def test_a_right_text_is_scored_in_what_is_left_of_evals_time(scorer: Forks) -> None:
    """Also where its first half, which is a slow text's, is over."""
    assert await scorer.ask(b"echo x") == b"x\n"
    assert await blamed(scorer, b"echo right", b"echo x", clock(10.0, used_s=6.0)) == b"right\n"
