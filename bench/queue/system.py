"""A three-stage queue system as the benchmark sees it: start the workers, submit jobs, wait for results, stop."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from bench.redis_server import Durability

STAGES = ("init", "run", "eval")
Measure = Literal["idle", "latency", "throughput", "intake"]


class SystemMissing(Exception):
    """The system cannot be measured here; the message says what is missing."""


class SystemFailed(Exception):
    """The system did not do what it was asked to; the message ends with its own words."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: a system, how it is set up, and how much it is given."""

    name: str
    system: str  # a library's name, `floor` or `ours`
    jobs: int  # of a throughput or intake measurement
    measures: Sequence[Measure] = ("idle", "latency", "throughput")
    default: bool = True  # false: only when asked for by name
    latency_jobs: int = 150
    payload_bytes: int = 0
    workers_per_stage: int = 1
    backlog: int = 0  # jobs queued behind the measured ones, and left there
    hold: bool = True  # workers stand still (SIGSTOP) while jobs go in; false where that outlasts what they tolerate
    durability: Durability = "everysec"  # of `ops/redis.conf`
    transport: Literal["unix", "tcp"] = "unix"
    options: Mapping[str, str] = {}  # what only this system understands, such as the door of an intake
    timeout_s: float = 60.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a system runs."""

    redis_url: str
    scratch: Path  # a private directory with a short path, empty at the start of the case
    venvs: Path  # the libraries' virtual environments, as `bench/venvs.sh` makes them


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission took, on the client's side."""

    seconds: float
    cpu_s: float
    requests: int  # calls, batches or pipelines, whatever one round trip carries


class System(Protocol):
    """One system under measurement. Every method raises `SystemFailed` when the system does not answer in time."""

    def start(self) -> None:
        """Starts the workers and what they need. They may still be importing when it returns."""
        ...

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Process ids by role: `init`, `run` and `eval` are the workers; others (`api`) are counted beside them."""
        ...

    def submit(self, jobs: int) -> Submitted:
        """Puts jobs in; returns when the last is accepted."""
        ...

    def finished(self) -> int:
        """Jobs through all three stages since the start, a cheap look: it is called every few milliseconds."""
        ...

    def latency(self, jobs: int) -> Sequence[float]:
        """One job at a time into idle workers: seconds from the call that submits it until its EVAL handler ran."""
        ...

    def stop(self) -> None:
        """Ends all processes. Idempotent; called after a failure as well."""
        ...
