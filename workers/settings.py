"""Settings of a worker process. Sources: command line, then environment."""

import argparse
import os
import re
import socket
from pathlib import Path

import msgspec
from msgspec.structs import replace

from prorl_mq.schema.messages import Stage
from prorl_mq.settings import STATE_DIR as ANY_STATE_DIR
from prorl_mq.settings import Setting
from prorl_mq.store.server.connection import RedisSettings
from workers.metrics_listener import FLAG_HELP, LOOPBACK


def plain(text: str) -> str:
    """A name that may stand in a key and in a line of words."""
    if not re.fullmatch(r"[A-Za-z0-9_.@+-]{0,96}", text):
        raise argparse.ArgumentTypeError(f"{text!r} has more than letters, digits, _ . @ + -, or more than 96 of them")
    return text


NODE = Setting(
    "--node",
    "this host's name among the workers; else its name in Slurm, or its host name",
    type=plain,
    variable="PRORL_NODE",
)
STATE_DIR = replace(ANY_STATE_DIR, help="directory of this node's data")
LEASE = Setting("--lease-ms", type=int, default=15_000, unit="ms", variable="PRORL_LEASE_MS")
METRICS_LISTEN = Setting("--metrics-listen", FLAG_HELP, default=LOOPBACK, variable="PRORL_METRICS_LISTEN")


def slots(text: str) -> tuple[int, int]:
    """Slots, and spare ones: N, or N+M."""
    count, _, spare = text.partition("+")
    return int(count), int(spare or 0)


def default_node() -> str:
    """The node's name in Slurm, since virtual nodes share a host name; else the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0] or "node"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process: one stage, on one node."""

    stage: Stage
    redis: RedisSettings
    slots: int = 8
    spare_slots: int = 0  # of RUN, beyond them, for rollouts that have lost their place
    node: str = msgspec.field(default_factory=default_node)
    name: str = ""  # default: stage-node-pid
    sandbox: str = "auto"  # none: only task families without sandboxes
    limits: str = ""  # how sandboxes are held to theirs: hard, watchdog; empty: not known
    state_dir: Path = Path(".state")
    tokenizer: str | None = None  # directory of the policy's tokenizer
    lease_ms: int = 15_000
    grace_ms: int = 30_000  # how long running jobs may continue after SIGTERM
    idle_exit_ms: int | None = None  # a worker that has held nothing for so long drains itself
    ends_at_ms: int | None = None  # when the scheduler ends this process, since the epoch
    eval_bytes_limit: int = 1 << 30  # RUN stops claiming while more than this waits for EVAL
    metrics_listen: str = LOOPBACK
    handlers: tuple[str, ...] = ()  # entry points to load; empty: all

    @property
    def worker_name(self) -> str:
        return self.name or f"{self.stage}-{self.node}-{os.getpid()}"
