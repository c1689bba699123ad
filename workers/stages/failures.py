"""The one place where a handler's exceptions become decisions: retry, or the end as infrastructure failure.

Each failed attempt writes one log line with its cause and traceback. docs/reference/faults.md has the table.
"""

import logging
import traceback

import msgspec

from prorl_mq.process import tracing
from prorl_mq.schema.codec import encode, sendable
from prorl_mq.schema.faults import Cause, cause_of
from prorl_mq.schema.items import LONGEST_BACK_OFF_MS, Fail, Finish, Release
from prorl_mq.schema.messages import ErrorInfo, Outcome, Stage
from prorl_mq.schema.timeline import WAITS
from workers.handler import NodeCrowded, SandboxLost
from workers.postponed import Postponed, told, words_of
from workers.stages.stage import packed
from workers.stages.staleness import TooStale
from workers.stages.work import Carried, Move, Work

TRACEBACK_BYTES = 8_000
log = logging.getLogger("workers.stages.failures")


class EndUnsaid(Exception):
    """Our own code failed between the end of a stage and its commit."""

    cause = Cause.WORKER


def failed(work: Work, carried: Carried, error: BaseException) -> Move:
    """A handler raised: INIT and RUN start again at INIT, EVAL at EVAL, until the attempts are used up."""
    if isinstance(error, Postponed):
        return postponed(work, error)
    tracing.failed(error)
    if isinstance(error, TooStale):
        return Move(
            item=Finish(work.held, Outcome.EXPIRED, encode(work.record(Outcome.EXPIRED, carried, note=words_of(error))))
        )
    limits = work.spec.limits
    retryable = bool(getattr(error, "retryable", True))
    number, cause = work.claim.attempts + 1, cause_of(error)
    about = f"job={work.held.ref} stage={work.held.stage} attempt={number}/{limits.max_attempts} cause={cause}"
    log.warning("%s failed: %s", about, told(error), exc_info=error)
    if retryable and work.claim.attempts + 1 < limits.max_attempts:
        again = Stage.EVAL if work.held.stage is Stage.EVAL else Stage.INIT
        delay_ms = min(LONGEST_BACK_OFF_MS, limits.backoff_ms * 2**work.claim.attempts)
        return Move(item=Fail(work.held, again, delay_ms, f"{cause}: {told(error)}"), error=error)
    record = work.record(Outcome.INFRA_ERROR, carried, error=describe(work, error, retryable=retryable))
    return Move(item=Finish(work.held, Outcome.INFRA_ERROR, encode(record)), error=error)


def postponed(work: Work, why: Postponed) -> Move:
    """Waits, and does not count: an attempt that failed while its image, family or node is known to fail says nothing
    about the job.
    """
    log.info("job=%s stage=%s waits: %s", work.held.ref, work.held.stage, why)
    again = Stage.EVAL if work.held.stage is Stage.EVAL else Stage.INIT
    return Move(item=Fail(work.held, again, why.delay_ms, f"{WAITS}{why}", counts=False), error=why)


def doubted(work: Work, error: SandboxLost) -> Move:
    """Once more, from turn 0 in a new sandbox, whatever the limit of attempts is."""
    log.warning("job=%s: %s; it is repeated once, and the same end again is the agent's", work.held.ref, told(error))
    carry = packed(Carried(doubt=told(error)[:500]))
    delay_ms = min(LONGEST_BACK_OFF_MS, work.spec.limits.backoff_ms)
    detail = f"in doubt: {told(error)}"
    return Move(item=Fail(work.held, Stage.INIT, delay_ms, detail, carry=carry, forgets=True), error=error)


def crowded(work: Work, carried: Carried, error: NodeCrowded) -> Move:
    """EVAL once more, whatever the limit of attempts is: what an agent runs can make a node look crowded, too."""
    log.warning("job=%s cause=%s: %s", work.held.ref, error.cause, told(error))
    carry = packed(msgspec.structs.replace(carried, crowded=True))
    delay_ms = min(LONGEST_BACK_OFF_MS, work.spec.limits.backoff_ms)
    return Move(item=Fail(work.held, Stage.EVAL, delay_ms, f"{error.cause}: {told(error)}", carry=carry))


def timed_out(work: Work, carried: Carried) -> Move:
    """The stage ran out of its budget; RUN before the policy spoke."""
    limits = work.spec.limits
    budget = {Stage.INIT: limits.init_ms, Stage.RUN: limits.run_ms, Stage.EVAL: limits.eval_ms}[work.held.stage]
    error = ErrorInfo(
        type="StageTimeout",
        message=f"{work.held.stage} took longer than {budget} ms",
        stage=work.held.stage,
        cause=Cause.TIMEOUT,
    )
    log.warning("job=%s cause=%s failed: %s", work.held.ref, error.cause, error.message)
    raised = TimeoutError(error.message)
    tracing.failed(raised)
    record = work.record(Outcome.STAGE_TIMEOUT, carried, error=error)
    return Move(item=Finish(work.held, Outcome.STAGE_TIMEOUT, encode(record)), error=raised)


def given_back(work: Work) -> Move:
    """A draining worker hands an unfinished job back: the attempt does not count. With a log of its turns it continues
    in its sandbox; else that is not used again.
    """
    if work.left.continues:
        return Move(item=Release(work.held))
    again = Stage.EVAL if work.held.stage is Stage.EVAL else Stage.INIT
    return Move(item=Fail(work.held, again, 0, "the worker was drained", counts=work.claim.releases >= 10))


def paused(work: Work) -> Move:
    """A worker gives a job back that is to be paused: it does not count. One with a log of its turns continues there,
    in another sandbox if it had one; else it starts again.
    """
    left = work.left
    if left.continues and left.destroy is None:
        return Move(item=Release(work.held))
    again = Stage.EVAL if work.held.stage is Stage.EVAL else Stage.INIT
    restarts = work.held.stage is Stage.RUN and not left.continues
    detail = "paused: its turns have no log, so that it starts again" if restarts else "paused"
    return Move(item=Fail(work.held, again, 0, detail, counts=False))


def unsaid(work: Work, error: BaseException) -> Move:
    """The end of an attempt whose own end could not be made or sent: of what it had, nothing is used again."""
    return forgetting(failed(work, Carried(), EndUnsaid(f"the attempt's end could not be said: {told(error)}")))


def forgetting(move: Move) -> Move:
    """The same, and the next attempt begins with the first turn."""
    if not isinstance(move.item, Fail):
        return move
    return msgspec.structs.replace(move, item=move.item._replace(forgets=True))


def describe(work: Work, error: BaseException, *, retryable: bool) -> ErrorInfo:
    """The account of a failure for the trainer."""
    text = "".join(traceback.format_exception(error))
    return ErrorInfo(
        type=type(error).__name__,
        message=words_of(error)[:2000],
        stage=work.held.stage,
        retryable=retryable,
        traceback=sendable(text)[-TRACEBACK_BYTES:],
        cause=cause_of(error),
    )
