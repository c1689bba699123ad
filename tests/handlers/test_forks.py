"""What comes out of a scorer's fork is read as bytes that an answer may have written, and its time as any other's."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from workers.handlers import clocks, forks
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


async def test_a_fork_that_only_waits_is_not_run_again(scorer: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    walls: list[int] = []
    asked = forks.Forks._asked

    async def noting(self: Forks, line: bytes, wall_s: int) -> bytes | None:
        walls.append(wall_s)
        return await asked(self, line, wall_s)

    monkeypatch.setattr(forks.Forks, "_asked", noting)
    assert await scorer.ask(b"sleep") is None
    assert walls == [clocks.WALL]
