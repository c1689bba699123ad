"""Failures of a sandbox itself, as opposed to failures of what runs inside it."""


class SandboxError(Exception):
    """The sandbox failed; the agent's command is not to blame."""

    retryable = True
    cause = "sandbox"  # as `prorl_mq.schema.faults` names it


class SandboxUnavailable(SandboxError):
    """A kind of sandbox that cannot run on this machine; the message says what is missing and how to get it."""

    retryable = False
    cause = "node"


class NoBaseImage(SandboxUnavailable):
    """A sandbox without an image of its own on a machine that has no base image; others may start there."""


class SandboxGone(SandboxError):
    """The sandbox behind a handle is dead, or lives on another node."""


class SandboxOverrun(SandboxGone):
    """The sandbox is dead since what ran inside had reached its hard limit of memory: its own doing, not a node's."""


class SandboxTaken(SandboxError):
    """A later attempt of the job has the sandbox: this one is to stop, and to leave it alone."""


class SandboxBusy(SandboxError):
    """Something runs in a sandbox whose state was to be marked, saved or restored."""


class CannotRestore(SandboxError):
    """A checkpoint that cannot be applied, now or later; what it was to be applied to is not to be used."""

    retryable = False


class CannotCopy(SandboxError):
    """A living sandbox cannot be copied into another one by layers: now, or at all. Both are as they were."""

    retryable = False


class SandboxStartFailed(SandboxError):
    """A new sandbox did not come up; the message has the isolator's own words."""


class LinkCut(SandboxError):
    """The connection to a sandbox of another machine was cut. The sandbox may live, and what was asked for may run."""

    def __init__(self, message: str, *, unsent: bool = False, reached: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent  # nothing of the request has left this process
        self.reached = reached  # the machine was there until now: a link was open, or it is slow to answer


class NotNow(SandboxError):
    """No sandbox can be made now, and no job is to blame: it waits for `retry_after_s`, and no attempt is counted."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ImageUnavailable(SandboxError):
    """An image that cannot be had. `final`: trying again does not help, for its registry or its content say so."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.retryable = not final
