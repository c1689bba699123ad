"""The staleness limit of a batch: how many versions its tokens may be behind what the pool serves by now.

INIT counts from the version announced when the job was admitted; from its first token on, that token's version counts,
or, where the backend tells none, the one announced when it was sampled.
"""

from collections.abc import Sequence

from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.policy import Announced, number, staleness
from prorl_mq.schema.trajectory import Trajectory
from workers.inference.protocol import Completion


class TooStale(Exception):
    """The job's tokens would be older than its batch allows: it ends as expired."""

    retryable = False


class Staleness:
    """Of one attempt in RUN."""

    def __init__(self) -> None:
        self._first: int | None = None  # version of the first token

    def sampled(self, completion: Completion, announced: int | None) -> None:
        """Notes what the first token was sampled with."""
        if self._first is None and completion.ids:
            told = number(completion.version[0]) if completion.version else None
            self._first = announced if told is None else told

    def behind(self, announced: int | None) -> int:
        """Number of versions that were announced since the first token."""
        return staleness(announced, self._first)


def check(spec: GroupSpec, announced: int | None, sampled: int | None, when: str) -> None:
    """Raises `TooStale`."""
    behind = staleness(announced, sampled)
    if spec.max_staleness is not None and behind > spec.max_staleness:
        raise TooStale(
            f"{when} it was {behind} versions behind: {sampled} against the announced {announced}; "
            f"max_staleness is {spec.max_staleness}"
        )


def check_admitted(spec: GroupSpec, policy: Announced, admitted_ms: int) -> None:
    """Raises `TooStale` in INIT."""
    check(spec, policy.version, policy.version_at(admitted_ms), "in INIT")


def first_version(trajectory: Trajectory | None, announced_in_run: int | None) -> int | None:
    """The version of the first token that the policy sampled: another model's pool counts for itself."""
    spans: Sequence[tuple[str, str] | None] = [
        span.version for _, segment in (trajectory.of_model("") if trajectory else ()) for span in segment.spans
    ]
    told = number(spans[0][0]) if spans and spans[0] else None
    return announced_in_run if told is None else told


def versions_of(trajectory: Trajectory) -> tuple[int, int] | None:
    """The oldest and the newest version that the policy's tokens are of; None where no backend told one."""
    told = [
        known
        for _, segment in trajectory.of_model("")
        for span in segment.spans
        for version in span.version or ()
        if (known := number(version)) is not None
    ]
    return (min(told), max(told)) if told else None
