"""This project as a system: `prorl-worker` for every stage, `prorl-api`, and a trainer that submits groups.

Filled in, each method is a few lines, since the pieces exist:

* `start`: `noop.write_entry_point(scratch / "plugin")` makes the no-op handler findable; `processes.environment` takes
  that directory, and the variables of `bench.queue.probe` (BENCH_REDIS_URL, BENCH_SCRATCH_DIR) let the handler leave
  its marks; `processes.start_worker` starts one process, `case.workers_per_stage` of them a stage.
* `submit`, `latency`: a `processes.ClientProcess` on a module whose `client()` calls `client.serve_async` keeps the
  trainer's CPU time apart; groups have `GROUP_SIZE` jobs, `case.options["door"]` is `http` or `stream`.
* `finished`: the size of the marks file, as in `chains.Chain`; or the results that a trainer has read.
"""

from collections.abc import Mapping, Sequence

from bench.queue.system import Case, Setting, Submitted

GROUP_SIZE = 8
SLOTS = 128


class Ours:
    """The service under measurement."""

    def __init__(self, case: Case, setting: Setting) -> None:
        self.case, self.setting = case, setting

    def start(self) -> None:
        raise NotImplementedError("the service's own case is not written yet")

    def processes(self) -> Mapping[str, Sequence[int]]:
        raise NotImplementedError

    def submit(self, jobs: int) -> Submitted:
        raise NotImplementedError

    def finished(self) -> int:
        raise NotImplementedError

    def latency(self, jobs: int) -> Sequence[float]:
        raise NotImplementedError

    def stop(self) -> None:
        """Nothing is started yet, so there is nothing to end."""
