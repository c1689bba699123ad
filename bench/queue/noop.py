"""A handler that does nothing in every stage, and how workers find it without an installed package."""

from pathlib import Path

from bench.queue import probe
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score

DATA_SOURCE = "bench-noop"
PADDING, SENT_AT = "padding", "sent_at"  # payload fields


class Noop:
    """Its EVAL leaves the mark that the benchmark counts; a job whose payload has `sent_at` reports its latency."""

    data_sources = (DATA_SOURCE,)
    schema = Schema(optional=(PADDING, SENT_AT))
    needs_sandbox = False

    async def init(self, context: Init) -> Prepared:  # noqa: ARG002
        return Prepared()

    async def run(self, context: Run) -> Ran:  # noqa: ARG002
        return Ran(trajectory=None)

    async def eval(self, context: Eval) -> Score:
        probe.done(float(context.job.payload.get(SENT_AT, 0.0)), "")
        return Score(reward=1.0)


def write_entry_point(directory: Path) -> Path:
    """Makes a distribution of metadata alone: on PYTHONPATH, it adds this handler to `prorl_mq.handlers`."""
    metadata = directory / "prorl_bench-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prorl-bench\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[prorl_mq.handlers]\nbench_noop = {__name__}:{Noop.__name__}\n")
    return directory
