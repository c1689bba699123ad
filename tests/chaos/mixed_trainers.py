"""Trainers of the mixed soak: each submits batches of its kind, reads what closes, and keeps an account of it."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.clock import monotonic
from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Sampling, Task
from prorl_mq.schema.trajectory import check
from prorl_mq.testing.sampling import FakeSampling, Reply, made_up_logprobs
from tests.agent.chat import call
from tests.support.walk import ASKED, Walker, walks
from tests.swe.rows import QUICK, ROWS

LIMITS = Limits(
    max_deaths=100, max_attempts=100, backoff_ms=50, init_ms=300_000, run_ms=600_000, eval_ms=300_000,
    total_ms=7_200_000,
)  # fmt: skip
FIX = "cd /testbed && sed -i 's/^\\t\\treturn include$/\\t\\treturn bool(include)/' pathspec/pathspec.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
LOOK_S = 0.3
PATIENCE_S = 600.0


class Policy(Walker):
    """A walker that fixes the example instance too, with our tools or with those of mini-swe-agent."""

    def reply(self, prompt_ids: Sequence[int], sampling: FakeSampling) -> Reply:
        text = self._renderer.text(prompt_ids)
        if ASKED.search(text) or '"name"' not in text:
            return super().reply(prompt_ids, sampling)
        ours = '"name": "execute_bash"' in text
        fix, end = ("execute_bash", "finish") if ours else ("bash", "bash")
        step = text.count("\n<tool_response>\n")
        said = call(fix, json.dumps({"command": FIX})) if step == 0 else call(end, _end(ours))
        words = [*self._renderer.ids(said), self._renderer.end_of_turn]
        return Reply(ids=words, logprobs=made_up_logprobs(words), finish_reason="stop")


def _end(ours: bool) -> str:
    return json.dumps({"message": "It returns a bool."} if ours else {"command": SUBMIT})


class Trainer:
    """One run of a tenant. `batches` makes the one of a number; `judge` says what is wrong with a closed group."""

    def __init__(
        self,
        client: AsyncClient,
        run: str,
        batches: Callable[[int], BatchRequest],
        judge: Callable[[AsyncClient, ClosedGroup], Awaitable[list[str]]],
    ) -> None:
        self.client, self.run, self.batches, self.judge = client, run, batches, judge
        self.submitted: set[str] = set()
        self.closed: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.reports = 0

    async def work(self, seconds: float) -> None:
        """Batches one after the other for so long; then the run is cancelled, and all that it holds comes in."""
        ends = monotonic() + seconds
        await self._submit(0)
        reading, number = asyncio.create_task(self._read()), 0
        try:
            while monotonic() < ends:
                await self._ended(self.batches(number), "target")
                number += 1
                await self._submit(number)
            await self.client.cancel("run", self.run)
            async with asyncio.timeout(PATIENCE_S):
                await self._ended(self.batches(number), "target", "cancelled")
                while not self.submitted <= set(self.closed):
                    if reading.done():
                        await reading
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            pass  # `faults` tells what never came
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _submit(self, number: int) -> None:
        batch = self.batches(number)
        self.submitted |= {f"{batch.batch_id}-{place}" for place in range(len(batch.groups))}
        await self.client.submit(batch)

    def faults(self) -> list[str]:
        """What this trainer saw that it must not see."""
        twice = [name for name, count in self.closed.items() if count > 1]
        strange = sorted(set(self.closed) - self.submitted)
        missing = sorted(self.submitted - set(self.closed))
        found = [f"{self.run}: {name} came {self.closed[name]} times" for name in twice]
        found += [f"{self.run}: {name} was never submitted" for name in strange]
        return [*found, *(f"{self.run}: {name} never came" for name in missing), *self.wrong]

    async def _read(self) -> None:
        async for group in self.client.results(self.run):
            self.wrong += [f"{self.run}: {each}" for each in await self.judge(self.client, group)]
            self.closed[group.record.group_id] += 1
            await self.client.ack(self.run, [group.cursor])

    async def _ended(self, batch: BatchRequest, *reasons: str) -> None:
        """A DAPO batch has ended when its report is there, for one of these reasons; that is acknowledged, too."""
        while True:
            status = await self.client.batch(f"{self.run}:{batch.batch_id}")
            if batch.dapo is None and not status.open:
                return
            if status.dapo is not None and status.dapo.report is not None:
                report = await self.client.report(self.run, batch.batch_id)
                await self.client.ack(self.run, [report.cursor])
                self.reports += 1
                if report.report.reason not in reasons:
                    self.wrong.append(f"{self.run}: {batch.batch_id} ended by {report.report.reason}")
                return
            await asyncio.sleep(LOOK_S)


def walking(run: str, count: int, steps: int) -> Callable[[int], BatchRequest]:
    """Rollouts of many turns in sandboxes."""

    def make(number: int) -> BatchRequest:
        made = walks(f"w{number}", count, steps)
        groups = [
            GroupRequest(
                task=Task(
                    task_id=f"w{number}-{place}", data_source="walk",
                    payload={"name": f"{run}-{number}-{place}", "steps": steps},
                ),
                n=1,
            )
            for place in range(count)
        ]  # fmt: skip
        return BatchRequest(run_id=run, batch_id=made.batch_id, groups=groups, limits=LIMITS, sampling=made.sampling)

    return make


def fixing(run: str) -> Callable[[int], BatchRequest]:
    """A row of SWE-bench, by our agent and by mini-swe-agent as it is published."""

    def make(number: int) -> BatchRequest:
        tasks = [
            Task(task_id=f"{QUICK}-{who}", data_source="swebench", payload={**ROWS[QUICK], **more})
            for who, more in (("ours", {}), ("mini", {"agent": "mini-swe-agent"}))
        ]
        sampling = Sampling(max_turns=8, max_tokens=1 << 20, max_context_tokens=1 << 20)
        groups = [GroupRequest(task=task, n=1) for task in tasks]
        return BatchRequest(run_id=run, batch_id=f"s{number}", groups=groups, limits=LIMITS, sampling=sampling)

    return make


def drawing(run: str, prompts: int) -> Callable[[int], BatchRequest]:
    """DAPO batches of short rollouts: every other prompt has one sample, which no filter keeps."""

    def make(number: int) -> BatchRequest:
        groups = [
            GroupRequest(
                task=Task(
                    task_id=f"t{number}-{place}", data_source="chaos",
                    payload={"run_ms": 300, "llm": True, "secret": "CANARY"},
                ),
                n=1 + place % 2,
            )
            for place in range(prompts)
        ]  # fmt: skip
        dapo = Dapo(target_groups=prompts // 4, surplus=list(Surplus)[number % len(Surplus)])
        return BatchRequest(run_id=run, batch_id=f"d{number}", groups=groups, limits=LIMITS, dapo=dapo)

    return make


async def earned(client: AsyncClient, closed: ClosedGroup) -> list[str]:
    """Each sample has the reward of work that was done once, and a trajectory that is whole."""
    if closed.record.verdict != "accepted":
        return [] if closed.record.verdict == "cancelled" else [f"{closed.record.group_id}: {closed.record.verdict}"]
    found = []
    for sample in closed.record.samples:
        if sample.reward != 1.0:
            found.append(f"{sample.job_id}: {sample.outcome}, reward {sample.reward}, {sample.note}, {sample.error}")
        elif sample.trajectory:
            check(await client.trajectory(sample.job_id))
    return found


async def informative(_: AsyncClient, closed: ClosedGroup) -> list[str]:
    """An accepted group has rewards 0 and 1; nothing of it is a fault of the infrastructure; nothing sealed is told."""
    record, found = closed.record, []
    if record.verdict == "accepted" and {each.reward for each in record.samples if not each.replaced} != {0.0, 1.0}:
        found.append(f"{record.group_id}: accepted with {[each.reward for each in record.samples]}")
    if record.verdict in {"failed", "expired"}:
        found.append(f"{record.group_id}: {record.verdict}")
    return [*found, *([f"{record.group_id}: CANARY"] if "CANARY" in str(record) else [])]
