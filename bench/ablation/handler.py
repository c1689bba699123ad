"""The task family of the ablation: an agent of fixed habits, with one part of the pipeline left out on demand."""

import asyncio
import math
import random
import subprocess
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from bench.ablation.gate import Gate
from bench.ablation.variants import Work
from bench.inference.rules import Chosen
from bench.sandbox.raw import bubblewrap
from sandbox.lifetime import destroy
from sandbox.protocol import SandboxHandle
from workers.handler import Eval, Init, JobView, Prepared, Ran, Run, Schema, Score
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.protocol import Policy

SIGMA: Final = 1.0
COMMAND: Final = "ls / >/dev/null; echo $((6*7))"


class Ablated:
    """`Work.variant` says what it leaves out. A job that is tried twice spoils the run: its gates count it twice."""

    data_sources = ("ablation",)
    schema = Schema(optional=tuple(Work.__struct_fields__))
    needs_sandbox = True

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._clients = InferenceClients()

    async def init(self, context: Init) -> Prepared:
        work = _work(context.job)
        if not work.variant.three_pools:
            await self._gate(work.slots).enter()
        await self._gate(work.boxes).enter()
        box = await context.sandbox()
        await asyncio.sleep(work.init_ms / 1000)
        return Prepared(sandbox=box.handle)

    async def run(self, context: Run) -> Ran:
        work, box = _work(context.job), context.sandbox
        assert box is not None
        policy = context.policy if work.variant.balanced else self._unbalanced(context.job, work)
        prompt: list[int] = [1, 2, 3]
        for turn in range(work.turns):
            done = await policy.generate(prompt, max_tokens=tokens(context.job, work, turn), temperature=1.0)
            prompt += done.ids
            for _ in range(work.commands):
                said = await (box.bash(COMMAND) if work.variant.fast_bash else _process())
                assert _text(said).strip() == "42", said
        if not work.variant.early_cleanup:
            box.close = _kept  # type: ignore[method-assign] - RUN would end it
            return Ran(trajectory=None, export=msgspec.to_builtins(box.handle))
        await box.close()
        self._gate(work.boxes).leave()
        return Ran(trajectory=None)

    async def eval(self, context: Eval) -> Score:
        work = _work(context.job)
        fresh = await context.sandbox()
        await asyncio.sleep(work.eval_ms / 1000)
        said = await fresh.bash(COMMAND)
        assert said.output.strip() == "42", said
        if not work.variant.early_cleanup:
            await destroy.destroy(msgspec.convert(context.export, SandboxHandle))
            self._gate(work.boxes).leave()
        if not work.variant.three_pools:
            self._gate(work.slots).leave()
        return Score(reward=1.0)

    def _gate(self, path: str) -> Gate:
        if path not in self._gates:
            self._gates[path] = Gate(path)
        return self._gates[path]

    def _unbalanced(self, job: JobView, work: Work) -> Policy:
        dice = random.Random(job.job_id)

        def choose(exclude: AbstractSet[str]) -> str:
            return dice.choice([each for each in work.backends if each not in exclude])

        return StickyPolicy(job_id=job.job_id, token="1", assigner=Chosen(choose), clients=self._clients)


def tokens(job: JobView, work: Work, turn: int) -> int:
    """Lognormal; of one sample and turn the same in every variant."""
    dice = random.Random(f"{job.task_id}:{job.index}:{turn}")
    drawn = dice.lognormvariate(math.log(work.tokens) - SIGMA * SIGMA / 2, SIGMA)
    return max(1, min(round(drawn), 8 * work.tokens))


def _work(job: JobView) -> Work:
    return msgspec.convert(dict(job.payload), Work)


def _text(said: Any) -> str:
    return said if isinstance(said, str) else said.output


async def _process() -> str:
    """A command as one has it without a session: an isolated process of its own. Its files are not the sandbox's."""
    argv = bubblewrap(["/bin/bash", "-c", COMMAND])
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()


async def _kept() -> None:
    """Instead of the sandbox's end."""
