"""A task family that writes down when each job begins to run and when it is scored, whatever dies afterwards."""

import os
import time
from pathlib import Path

from tests.chaos.handler import Chaos
from workers.handler import Eval, Ran, Run, Score


class Marked(Chaos):
    data_sources = ("marked",)

    async def run(self, context: Run) -> Ran:
        mark("begin", context.job.job_id)
        return await super().run(context)

    async def eval(self, context: Eval) -> Score:
        score = await super().eval(context)
        mark("end", context.job.job_id)
        return score


def mark(what: str, job: str) -> None:
    """One line in the file of marks, by one write: the kernel keeps it when this process is killed."""
    with Path(os.environ["CHAOS_MARKS"]).open("ab", buffering=0) as file:
        file.write(f"{what} {job} {time.monotonic():.4f}\n".encode())
