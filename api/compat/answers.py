"""A closed group becomes the body of a `/process` answer. Pure."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from api.compat.tasks import CompatRollout
from prorl_mq.converters import prorl
from prorl_mq.converters.rollout import versions
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.codec import decode
from prorl_mq.schema.messages import Event, GroupRecord, Outcome, SampleRecord, Stage, events
from prorl_mq.schema.trajectory import HandedOver, Trajectory

RESOLVED_ABOVE: Final = 0.99
STAGES: Final[Mapping[str, str]] = {
    Stage.INIT: "init",
    Stage.RUN: "run agent",
    Stage.EVAL: "eval",
}  # as texts call them
OUT_OF_TIME: Final = "Operation timed out"
_TOKENS: Final = ("token_ids", "input_ids", "logprobs")
_ENDS, _ONE_TURN_ENDS = ("finish",), ("finish", "answer")
_STAGED: Final = re.compile("|".join(Stage))


class Ending(NamedTuple):
    """The end of a job, in the contract's words."""

    success: bool = False
    error: str | None = None
    critical_error: str | None = None
    traceback: str | None = None


def answered(record: GroupRecord) -> SampleRecord | None:
    """The sample that the answer is about: the last try. None: it was cancelled before there was one."""
    return max(record.samples, key=lambda sample: sample.index, default=None)


def shown(record: GroupRecord) -> SampleRecord | None:
    """The sample whose messages are sent: the last try that has some."""
    return max((each for each in record.samples if each.trajectory), key=lambda sample: sample.index, default=None)


def body(call: CompatRollout, record: GroupRecord, trajectory: Trajectory | None) -> dict[str, Any]:
    """Every key of the contract, whatever the outcome, and our additions behind them."""
    sample = answered(record) or SampleRecord(job_id="", index=0, outcome=Outcome.CANCELLED)
    line = events(sample.job_id, record.timelines.get(sample.job_id, ""))
    end = _ending(sample, line)
    solved = sample.reward is not None and sample.reward > RESOLVED_ABOVE
    told = versions([each for _, each in trajectory.of_model("")]) if trajectory is not None else None
    return {
        "messages": _messages(call, trajectory),
        "tools": list(trajectory.tools) if trajectory is not None else [],
        "success": end.success,
        "error": end.error,
        "finish": sample.stop_reason in (_ONE_TURN_ENDS if call.sampling.is_reasoning_task else _ENDS),
        "end_properly": sample.outcome is not Outcome.AGENT_ERROR,
        "resolved": solved and sample.outcome in {Outcome.COMPLETED, Outcome.TRUNCATED},
        "critical_error": end.critical_error,
        "instance_id": call.instance_id,
        "trajectory_id": call.trajectory_id,
        "filter": _filtered(end),
        "timing": _timing(sample, line, out_of_time=end.critical_error == "timeout"),
        "git_patch": _patch(trajectory),
        **({"traceback": end.traceback} if end.traceback else {}),
        "reward": sample.reward,
        "policy_version": list(told) if told else None,
        "outcome": sample.outcome,
        "attempt": sample.attempt,
        "job_id": call.job_id,
    }


def _ending(sample: SampleRecord, line: list[Event]) -> Ending:
    match sample.outcome:
        case Outcome.COMPLETED:
            return Ending(success=True)
        case Outcome.AGENT_ERROR:
            return Ending(error=f"AgentToolCallError: {sample.note or 'the policy made no usable tool call'}")
        case Outcome.TRUNCATED:
            return _truncated(sample)
        case Outcome.STAGE_TIMEOUT | Outcome.EXPIRED:
            return Ending(error=f"Error in {STAGES[_stage(sample, line)]}: {OUT_OF_TIME}", critical_error="timeout")
        case Outcome.CANCELLED:
            return Ending(error="Job cancelled", critical_error=_stage(sample, line))
        case Outcome.INFRA_ERROR:
            stage, error = _stage(sample, line), sample.error
            said = f"{error.type}: {error.message}" if error else "the worker was lost"
            return Ending(
                error=f"Error in {STAGES[stage]}: {said}",
                critical_error=stage,
                traceback=error.traceback if error else None,
            )


def _truncated(sample: SampleRecord) -> Ending:
    match sample.truncated_by:
        case "turns":
            return Ending(error=f"RuntimeError: Agent reached maximum iteration: {sample.turns}")
        case "time":
            return Ending(error=f"Error in run agent: {OUT_OF_TIME}", critical_error="timeout")
        case _:
            said = "Conversation history longer than LLM context window limit"
            return Ending(error=f"LLMContextWindowExceedError: {said}")


def _stage(sample: SampleRecord, line: list[Event]) -> Stage:
    """Stage in which it ended: the one its error names, else that of the last event that names a stage."""
    named = [sample.error.stage] if sample.error else []
    named += [event.stage for event in reversed(line)]
    return next((Stage(name) for name in named if _STAGED.fullmatch(name)), Stage.INIT)


def _filtered(end: Ending) -> bool:
    """The contract's rule: its first match wins."""
    if end.critical_error is not None:
        return True
    return not (end.success or "AgentToolCallError" in (end.error or ""))


def _timing(sample: SampleRecord, line: list[Event], *, out_of_time: bool) -> dict[str, Any]:
    spent = {f"{stage}_time": sample.seconds.get(stage, 0.0) for stage in Stage}
    counted = sum(spent.values())
    passed = (line[-1].ms - line[0].ms) / 1000 if line else 0.0
    others = max(0.0, passed - counted)
    return {**spent, "others_time": others, "counted_elapsed": counted, "timeout_triggered": out_of_time}


def _patch(trajectory: Trajectory | None) -> str | None:
    """The patch that RUN handed to EVAL, of a software engineering task; what is no text in it as escapes."""
    if trajectory is None or not trajectory.artefact:
        return None
    export = decode(trajectory.artefact, HandedOver).export
    patch = export.get("patch") if isinstance(export, dict) else None
    return patch.decode("utf-8", "backslashreplace") if isinstance(patch, bytes) else None


def _messages(call: CompatRollout, trajectory: Trajectory | None) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if trajectory is not None:
        with contextlib.suppress(NotTrainable):
            made = prorl.messages(trajectory, input_ids=call.sampling.return_input_ids)
    if not call.sampling.token_level_generation:
        for message in made:
            for name in _TOKENS:
                message.pop(name, None)
    return made
