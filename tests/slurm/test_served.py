"""A server as a job, which fails at its start, or serves while Redis is away."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from prorl_mq.errors import NotFound, RedisUnavailable
from prorl_mq.process.children import Program
from prorl_mq.process.crews.crew import FIRST_WAIT_S, Stopping
from slurm import served
from slurm.scaling import YOUNG_S
from slurm.served import Served

pytestmark = pytest.mark.anyio
ANSWERS = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def server(code: str) -> Served:
    def program(port: int) -> Program:
        return Program(name="backend", argv=[sys.executable, "-c", code, str(port)])

    return Served(program, address="127.0.0.1", ready="/", start_s=60, grace_s=2)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What it sleeps for, a tenth of a second at most."""
    found = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)
        await asyncio.sleep(min(seconds, 0.1))

    monkeypatch.setattr(served, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return found


async def nothing(url: str) -> None:
    """As of a server that announces itself nowhere."""


async def test_a_command_that_fails_at_once_ends_the_task_while_it_counts_as_young(pauses: list[float]) -> None:
    """Else it would be submitted again without limit. Half of that time is left for its starts."""
    with Stopping() as stopping:
        assert await server("raise SystemExit(2)").run(stopping, nothing, nothing) == 1
    assert [pause for pause in pauses if pause >= FIRST_WAIT_S] == [2, 4, 8, 16]
    assert sum(pauses) < YOUNG_S / 2


async def test_a_server_outlives_that_redis_does_not_answer(
    pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have loaded for half an hour: it is announced once Redis is there. Nor does an end without Redis fail."""
    seen: list[str] = []
    with Stopping() as stopping:

        async def announce(url: str) -> None:
            seen.append(url)
            if len(seen) < 3:
                raise RedisUnavailable("Redis has not answered for 120 s")
            asyncio.get_running_loop().call_soon(stopping.asked.set)

        async def withdraw(url: str) -> None:
            raise RedisUnavailable("Redis has not answered for 120 s")

        assert await server(ANSWERS).run(stopping, announce, withdraw) == stopping.exit_code
    assert len(seen) == 3
    assert len(set(seen)) == 1, "the same process"
    assert pauses.count(served.AGAIN_S) == 2
    assert "cannot be announced: Redis has not answered" in capsys.readouterr().err


async def test_an_announcement_that_is_refused_is_a_failed_start(
    pauses: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "CRASHES", 1)

    async def refused(url: str) -> None:
        raise NotFound("there is no such pool")

    with Stopping() as stopping:
        assert await server(ANSWERS).run(stopping, refused, nothing) == 1
    assert "backend: there is no such pool" in capsys.readouterr().err


async def test_nothing_is_announced_after_it_was_withdrawn(pauses: list[float]) -> None:
    order: list[str] = []
    with Stopping() as stopping:

        async def announce(url: str) -> None:
            asyncio.get_running_loop().call_soon(stopping.asked.set)
            await asyncio.sleep(30)
            order.append("announced")

        async def withdraw(url: str) -> None:
            order.append("withdrawn")

        await server(ANSWERS).run(stopping, announce, withdraw)
    assert order == ["withdrawn"]
