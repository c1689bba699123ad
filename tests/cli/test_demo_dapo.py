"""`prorl-mq demo --dapo` on a scripted backend, also when everything is killed in the middle of it."""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from reasoning_gym.factory import create_dataset

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply, ReplyFunction
from tests.agent.chat import MARKERS, TOOLED, tokenizer
from tests.cli.conftest import below, command, names

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

PROMPTS = 20
ENDS_S = 120.0


def now_and_then(right: Sequence[int], wrong: Sequence[int]) -> ReplyFunction:
    """Every second sample is right, by its seed."""

    def reply(_prompt_ids: Sequence[int], params: FakeSampling) -> Reply:
        return Reply(ids=right if random.Random(params.seed).random() < 0.5 else wrong, finish_reason="stop")

    return reply


@pytest.fixture
async def backend() -> AsyncIterator[str]:
    encode = tokenizer(TOOLED, MARKERS).encode
    answer = create_dataset("chain_sum", seed=0, size=1)[0]["answer"]
    reply = now_and_then(encode(f"<answer>{answer}</answer>"), encode("<answer>no</answer>"))
    async with FakeBackend(reply=reply, latency_ms=400) as made:
        yield made.address


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """The same sum again and again, so that the backend knows its answer."""
    payload = {"name": "chain_sum", "seed": 0, "size": 1, "tools": False}
    rows = [{"task_id": f"sum-{n}", "data_source": "reasoning_gym", "payload": payload} for n in range(PROMPTS)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Demo:
    """One run of the command."""

    def __init__(self, state: Path, sums: Path, backend: str, tokenizer_dir: Path) -> None:
        self.out = sums.parent / "out.jsonl"
        self.argv = command(
            "demo", "--dapo", "--state-dir", state, "--tasks", sums, "--backend", backend,
            "--tokenizer", tokenizer_dir, "--n", 4, "--sandbox", "none", "--out", self.out,
        )  # fmt: skip

    async def start(self) -> asyncio.subprocess.Process:
        env = {**os.environ, "PRORL_LEASE_MS": "1500"}
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*self.argv, stdout=pipe, stderr=pipe, env=env)

    async def finish(self) -> str:
        """Runs it to its end; what it printed."""
        process = await self.start()
        async with asyncio.timeout(ENDS_S):
            printed, said = await process.communicate()
        assert process.returncode == 0, (printed.decode(), said.decode())
        return printed.decode()

    async def written(self, process: "asyncio.subprocess.Process") -> None:
        """Waits until the first group is in the file."""
        async with asyncio.timeout(ENDS_S):
            while not (self.out.exists() and self.out.read_bytes().count(b"\n")):
                assert process.returncode is None, "it ended before it had a group"
                await asyncio.sleep(0.01)

    def check(self) -> None:
        """Each prompt has one record, with each of its samples once, and as many are accepted as were wanted."""
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        assert max(Counter(line["job_id"] for line in lines).values()) == 1
        verdicts = {line["group_id"]: line["verdict"] for line in lines}
        assert Counter(verdicts.values())["accepted"] == 4
        for group, verdict in verdicts.items():
            rewards = [line["reward"] for line in lines if line["group_id"] == group]
            assert verdict == "cancelled" or (len(set(rewards)) > 1) == (verdict == "accepted"), (verdict, rewards)


async def test_a_batch_is_filled_and_reported(state: Path, sums: Path, backend: str, tokenizer_dir: Path) -> None:
    demo = Demo(state, sums, backend, tokenizer_dir)
    printed = await demo.finish()
    assert "target: 4 of 4 groups" in printed
    demo.check()
    assert not (state / "demo-dapo" / "redis").exists()


async def test_killed_in_the_middle_it_goes_on_when_it_is_run_again(
    state: Path, sums: Path, backend: str, tokenizer_dir: Path
) -> None:
    """Redis, the API, every worker, their guard and the command itself die at once."""
    demo = Demo(state, sums, backend, tokenizer_dir)
    process = await demo.start()
    await demo.written(process)
    everything = below(process.pid)
    running = " ".join(names(everything).values())
    assert all(name in running for name in ("-server", "-m api", "--stage run", "process.guard")), running
    for pid in [*everything, process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    before = demo.out.read_text().splitlines()
    printed = await demo.finish()
    assert "target: 4 of 4 groups" in printed
    assert demo.out.read_text().splitlines()[: len(before)] == before
    demo.check()
