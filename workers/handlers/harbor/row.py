"""A task as a row: the open part, which INIT and RUN work with, and what EVAL alone sees."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.handlers.harbor.fields import Collect, Healthcheck
from workers.handlers.harbor.files import TaskFile
from workers.handlers.rows import AgentRow, fitting


class CarriedPath(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path that is carried from RUN to a separate verifier."""

    path: str
    exclude: Sequence[str] = ()


class TaskRow(AgentRow, frozen=True, kw_only=True, omit_defaults=True):
    """The open part."""

    instruction: str
    image: str  # docker://NAME, or built:DIGEST
    workdir: str
    environment: Mapping[str, str] = {}
    writable: Sequence[str] = ()  # directories of the image; the working directory is one
    empty: Sequence[str] = ()  # directories that begin empty; /logs is one
    files: Sequence[TaskFile] = ()  # put into the working directory
    memory_mb: int | None = None
    storage_mb: int | None = None
    agent_timeout_s: float | None = None
    healthcheck: Healthcheck | None = None
    collect: Sequence[Collect] = ()
    carried: Sequence[CarriedPath] = ()
    separate: bool = False
    tools: bool | Sequence[str] = True
    system: str | None = None  # replaces the family's own system message


class HiddenTests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verifier. With an image of its own, that holds /tests as well."""

    tests: Sequence[TaskFile] = ()
    timeout_s: float = 600.0
    environment: Mapping[str, str] = {}
    image: str | None = None  # None: the agent's
    workdir: str | None = None
    image_environment: Mapping[str, str] = {}
    memory_mb: int | None = None
    storage_mb: int | None = None
    healthcheck: Healthcheck | None = None


class Solved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reference solution, which only a check of the task runs."""

    files: Sequence[TaskFile] = ()
    environment: Mapping[str, str] = {}


OPEN = tuple(name for name in TaskRow.__struct_fields__)
REQUIRED = ("instruction", "image", "workdir")
SEALED = ("verifier", "solution")


def row_of(payload: Mapping[str, Any]) -> TaskRow:
    """Raises `BadRow`."""
    return fitting(dict(payload), TaskRow)


def hidden_of(sealed: Mapping[str, Any]) -> HiddenTests:
    """Raises `BadRow`."""
    return fitting(sealed.get("verifier"), HiddenTests)


def solved_of(sealed: Mapping[str, Any]) -> Solved | None:
    """None for a task without a solution. Raises `BadRow`."""
    given = sealed.get("solution")
    return None if given is None else fitting(given, Solved)
