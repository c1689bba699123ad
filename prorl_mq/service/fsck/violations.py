"""One thing that an invariant forbids."""

from typing import NamedTuple

from prorl_mq.schema.ids import public


class Violation(NamedTuple):
    """`number` is that of `docs/invariants.md`; `fix` says what to do next.

    `seen` is the state in which it was seen: in another state it is another violation.
    """

    number: int
    key: str
    what: str
    fix: str
    seen: str = ""

    def __str__(self) -> str:
        return f"invariant {self.number}: {self.key}: {self.what}; {self.fix}"


def cancel_job(ref: str) -> str:
    """Advice to end a job, whatever has become of it."""
    return f"look at `prorl-mq job {public(ref)} --timeline`, then `prorl-mq cancel job {public(ref)}`"


def cancel_group(ref: str) -> str:
    """Advice to end a group that still waits somewhere."""
    return f"`prorl-mq cancel group {public(ref)}`"


def remove(key: str) -> str:
    """Advice to remove a key that nothing owns."""
    return f"nothing owns it: copy it for a report, then UNLINK {key}"


def correct(command: str) -> str:
    """Advice to correct a count."""
    return f"stop API and workers, look again, and correct it: {command}"
