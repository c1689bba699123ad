"""A task family whose jobs hold a sandbox and work until they are cancelled: half in a tool call, half in a request."""

from pathlib import Path

from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score

DATA_SOURCE = "bench-held"
LONG_S = 1_500.0


class Held:
    data_sources = (DATA_SOURCE,)
    schema = Schema()
    needs_sandbox = True

    async def init(self, context: Init) -> Prepared:
        return Prepared(sandbox=(await context.sandbox()).handle)

    async def run(self, context: Run) -> Ran:
        assert context.sandbox is not None
        if in_tool_call(context.job.job_id.split(":")[1]):
            await context.sandbox.bash(f"sleep {LONG_S:.0f}", timeout_s=LONG_S)
        else:
            await context.policy.generate([1, 2, 3], max_tokens=8, temperature=1.0)
        raise RuntimeError("it was to be cancelled long before")

    async def eval(self, context: Eval) -> Score:
        raise AssertionError(f"{context.job.job_id} was never to reach EVAL")


def in_tool_call(group: str) -> bool:
    """Whether a group's only job is in a tool call; else it is in a request."""
    return int(group.rpartition("-")[2]) % 2 == 0


def write_entry_point(directory: Path) -> Path:
    """A distribution of metadata alone: on PYTHONPATH, it adds this family."""
    metadata = directory / "prorl_bench_held-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prorl-bench-held\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[prorl_mq.handlers]\nbench_held = {__name__}:{Held.__name__}\n")
    return directory
