"""The parts of a deployment on Slurm: the words of its TOML file."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

WATCH: Final = "watch"  # the job of that name
LARGEST_ARRAY: Final = 1001  # MaxArraySize of a Slurm that nobody has configured

Line = Annotated[str, Meta(pattern=r"^[^\n\r]+(?![\n\r])$")]  # one line of a script
Word = Annotated[str, Meta(pattern=r"^[^\s]+(?!\n)$")]
DeploymentName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_\-]{1,40}(?!\n)$")]  # a dot ends it in a job's name
ArrayName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_\-]{0,39}(?!\n)$")]
# As sbatch has it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, or none.
TimeLimit = Annotated[
    str, Meta(pattern=r"^(\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|(?i:UNLIMITED|INFINITE))(?!\n)$")
]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[int, Meta(ge=1, le=7 * 24 * 3600)]


class TaskKind(StrEnum):
    """Work of an array's tasks. A node task runs INIT, RUN and the sandbox keeper of its node."""

    NODE = "node"
    INIT = "init"
    RUN = "run"
    EVAL = "eval"


class AtSignal(StrEnum):
    """End of a task that Slurm warns, once it has drained: code 0, or 75, which asks to be run again."""

    EXIT = "exit"
    REQUEUE = "requeue"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Options that every job may give Slurm. `sbatch` are further options as they stand on a command line."""

    partition: Word | None = None
    account: Word | None = None
    time: TimeLimit = "01:00:00"
    cpus: Positive = 1
    memory: Word | None = None  # as 4G
    gres: Word | None = None
    interface: Word | None = None  # of a server: the network that others reach it by, as ib0
    image: Word | None = None  # an Apptainer image that the job's program runs in
    setup: tuple[Line, ...] = ()  # lines of shell before the program: modules, environments
    sbatch: tuple[Line, ...] = ()


class Array(Job, frozen=True, kw_only=True):
    """An array of tasks of one kind."""

    kind: TaskKind
    count: Annotated[int, Meta(ge=1, le=LARGEST_ARRAY)] = 1
    throttle: Positive | None = None  # tasks that may run at a time
    slots: Positive = 8  # jobs at a time in each worker process
    processes: Positive = 1  # worker processes of a stage in each task; a node task has one of INIT
    sandbox: Word = "bubblewrap"
    warn_s: Seconds = 180  # how long before its limit Slurm warns a task
    at_signal: AtSignal = AtSignal.EXIT
    idle_exit_s: Seconds | None = None  # a task that has had nothing to do for so long ends
    options: tuple[Line, ...] = ()  # further options of its workers
    least: Annotated[int, Meta(ge=0)] = 0  # tasks that `scale` keeps
    most: Positive | None = None  # tasks that `scale` may ask for; default: count


class RedisJob(Job, frozen=True, kw_only=True):
    """Redis: a job of its own, or, with `url`, a server outside of the deployment."""

    url: Word | None = None
    tls: bool = True
    options: tuple[Line, ...] = ()  # of the server, as "--maxmemory 8gb"


class ApiJob(Job, frozen=True, kw_only=True):
    """The HTTP ingress with the maintenance duties."""


class WatchJob(Job, frozen=True, kw_only=True):
    """`scale --watch` as a job that submits its successor."""


class Backend(Job, frozen=True, kw_only=True):
    """An inference server. `{python}`, `{host}`, `{port}` and `$NAME` of its command are filled in; over several nodes
    also `{master_port}`, `{rank}` and `{nodes}`.
    """

    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    nodes: Positive = 1  # of one backend
    others: tuple[str, ...] = ()  # the command on all nodes but the first, where it is another one
    count: Annotated[int, Meta(ge=1, le=LARGEST_ARRAY)] = 1
    pool: Word = "policy"
    health: str = "/health"  # answers 200 when it is ready


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Rules by which `scale` follows the work: `up_s` and `down_s` are how long a need must last before it acts."""

    every_s: Seconds = 30
    up_s: Annotated[int, Meta(ge=0)] = 0
    down_s: Annotated[int, Meta(ge=0)] = 300
    step: Positive = 8  # tasks asked for at a time
    start_s: Seconds = 120  # how long a running task may take until its worker is seen


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment. Files that all nodes see are below `shared`, sandboxes below `scratch` of each node."""

    name: DeploymentName
    shared: Line
    scratch: Line = "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"
    python: Line | None = None  # of every node; default: the one that reads this
    namespace: Word = "prorl"
    lease_ms: Annotated[int, Meta(ge=500)] = 15_000
    redis: RedisJob | None = None
    api: ApiJob | None = None
    watch: WatchJob | None = None
    backends: Mapping[ArrayName, Backend] = {}
    arrays: Mapping[ArrayName, Array] = {}
    scale: Scaling = Scaling()
