"""Harnesses that this node has: a directory each, with how to start it.

`PRORL_AGENTS` names the directory of directories (`make agents` fills it). A harness is mounted read-only into the
sandbox, so images need not hold it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.task_schema import nearest
from sandbox.host.reachable import reachable
from sandbox.protocol import Mount

AGENTS = "PRORL_AGENTS"
INSIDE = "/opt/prorl-agent"
DESCRIPTION = "harness.json"


class NoHarness(Exception):
    """A task names a harness that this node does not have, or whose description cannot be read."""

    retryable = False
    cause = Cause.NODE


class Harness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The start of a harness. `argv` and `environment` may contain {address}, {key}, {task}, {workdir}, and the job's
    limits {context_tokens} and {turn_tokens}.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = {}


def directory_of(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of a harness. Raises `NoHarness` that lists those there are."""
    agents = Path(environment.get(AGENTS) or ".state/agents")
    known = sorted(path.parent.name for path in agents.glob(f"*/{DESCRIPTION}"))
    if name not in known:
        raise NoHarness(f"{agents} has no agent {name!r} ({nearest(name, known)}); {AGENTS} names the directory")
    return agents.absolute() / name


def harness(name: str, environment: Mapping[str, str] = os.environ) -> Harness:
    path = directory_of(name, environment) / DESCRIPTION
    try:
        return msgspec.json.decode(path.read_bytes(), type=Harness)
    except (OSError, msgspec.MsgspecError) as error:
        raise NoHarness(f"{path} does not describe a harness: {error}") from error


def mount_of(name: str) -> Mount:
    """The harness as a sandbox sees it."""
    return Mount(source=str(reachable(directory_of(name))), target=INSIDE)
