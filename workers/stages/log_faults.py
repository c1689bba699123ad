"""Why an attempt cannot continue where another one has ended, and the answer that shows what of its log is lost."""

import asyncio

from prorl_mq.schema.faults import Cause


class SandboxAhead(Exception):
    """A sandbox has begun calls that the log does not know, as when Redis has lost its last second."""

    retryable = True
    forgets_log = False
    cause = Cause.WORKER


class RebuildCut(Exception):
    """A sandbox has a part of the rollout's calls: the attempt that made them again has ended within them."""

    retryable = True
    forgets_log = False
    cause = Cause.WORKER


class RestoreFailed(Exception):
    """A checkpoint could not be restored. It is not tried again: the next attempt makes all calls again."""

    retryable = True
    forgets_log = False
    cause = Cause.SANDBOX


def lacking(answer: "asyncio.Future[str] | None") -> bool:
    """True for the answer of a Redis that has lost records in front of this one: it waits for them."""
    came = answer is not None and answer.done() and not answer.cancelled() and answer.exception() is None
    return answer is not None and came and answer.result().isdecimal()
