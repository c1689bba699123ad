"""Faults: the agent's, the row's and the infrastructure's, and the cause of a failure.

An exception class carries its cause, set where it arises. docs/reference/faults.md says what becomes of each.
"""

from enum import StrEnum


class Blame(StrEnum):
    """The three faults."""

    AGENT = "agent"  # it earns the family's least reward, never null
    ROW = "row"  # no answer to this task can be scored
    INFRASTRUCTURE = "infrastructure"  # it never earns a reward


class Cause(StrEnum):
    """The thing that failed."""

    AGENT = "agent"
    ROW = "row"
    BACKEND = "backend"
    SANDBOX = "sandbox"
    WORKER = "worker"
    NODE = "node"
    TIMEOUT = "timeout"

    @property
    def blame(self) -> Blame:
        return Blame(self) if self in {Cause.AGENT, Cause.ROW} else Blame.INFRASTRUCTURE


_CAUSES = frozenset(each.value for each in Cause)


def cause_of(error: BaseException) -> Cause:
    """The cause that an exception carries; of a group, that of its first one. Code that says none is the worker's."""
    if isinstance(error, BaseExceptionGroup):
        return cause_of(error.exceptions[0])
    told = getattr(error, "cause", None)
    if isinstance(told, str) and told in _CAUSES:
        return Cause(told)
    if isinstance(error, TimeoutError):
        return Cause.TIMEOUT
    return Cause.NODE if isinstance(error, OSError | MemoryError) else Cause.WORKER
