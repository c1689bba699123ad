"""`prorl-mq fork`, `pause` and `resume`, as documentation gives them."""

import asyncio

import pytest

from prorl_mq.client import AsyncClient
from tests.api.service import Worker
from tests.cli.conftest import prorl
from tests.client.test_forks import PARENT, logged

pytestmark = pytest.mark.anyio


async def test_a_job_is_forked_paused_and_resumed_by_commands(ingress: str, worker: Worker) -> None:
    async def said(*words: object, code: int = 0) -> str:
        done = await asyncio.to_thread(prorl, *words, "--url", ingress)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    async with AsyncClient(ingress) as client:
        await logged(client, worker)
    made = "run:tree:0 to run:tree:1: turns 0 to 1 of run:batch-0:0, 4 sampled tokens; all calls are made again"
    fork = ("fork", PARENT, "tree", "--turn", 1, "--samples", 2)
    assert (await said(*fork)).startswith(made)
    assert (await said(*fork)).endswith("(there was this fork already)\n")
    assert "cannot be forked: its log ends with turn 2" in await said("fork", PARENT, "--turn", 5, code=1)
    told = f"job {PARENT}: pausing; workers give 1 jobs back at their next turn\n"
    assert await said("pause", "job", PARENT) == told
    assert await said("resume", "job", PARENT) == f"job {PARENT}: resumed, 1 jobs that were paused\n"
    assert (await said("pause", "run", "run", 7200, "expire")).startswith("run run: pausing; ")
    assert (await said("resume", "run", "run")).startswith("run run: resumed, ")
