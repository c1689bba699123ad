"""Function calling in one answer: the calls must be the row's, by name and arguments, in any order."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.prorl.single_turn import answer_once, canonical, declared, messages_of
from workers.handlers.rows import ANSWERS, QUESTIONS, BadRow, ground_truth, parsed

MAX_CALLS = 64


class ToolCalls:
    """`{prompt, tools?, reward_model: {ground_truth: [{name, arguments}]}}`; `tools` are functions as OpenAI's."""

    data_sources: Sequence[str] = ("tool_call",)
    schema = Schema(optional=(*QUESTIONS, "tools"), sealed=ANSWERS, seals_rest=True)
    needs_sandbox = False

    async def init(self, context: Init) -> Prepared:
        messages_of(context.job.payload)
        declared(context.job.payload.get("tools"))
        return Prepared()

    async def run(self, context: Run) -> Ran:
        result = await answer_once(context, declared(context.job.payload.get("tools")))
        calls = [list(call) for turn in result.trajectory.turns for call in turn.client_calls]
        return Ran(trajectory=result.trajectory, export={"calls": calls[: MAX_CALLS + 1]})

    async def eval(self, context: Eval) -> Score:
        wanted = Counter(_expected(context.sealed))
        said = (context.export or {}).get("calls") or []
        if len(said) > MAX_CALLS:
            return Score(reward=0.0, note=f"more than {MAX_CALLS} calls")
        if unread := [text for name, text in said if not name]:
            return Score(reward=0.0, note=f"a call cannot be read: {unread[0][:200]}")
        try:
            made = Counter(canonical([name, json.loads(arguments)]) for name, arguments in said)
        except RecursionError:
            return Score(reward=0.0, note="the arguments of a call are nested too deep")
        parts = {
            "calls": float(made.total()),
            "expected": float(wanted.total()),
            "right": float((made & wanted).total()),
        }
        if made == wanted:
            return Score(reward=1.0, parts=parts)
        return Score(reward=0.0, parts=parts, note=f"{(made & wanted).total()} of {wanted.total()} calls are right")


def _expected(sealed: Mapping[str, Any]) -> list[str]:
    """The row's calls in canonical form; none, where the right answer is to call nothing. Raises `BadRow`."""
    truth = ground_truth(sealed)
    if isinstance(truth, Mapping) and "tool_calls" in truth:
        truth = truth["tool_calls"]
    listed = truth if isinstance(truth, list) else [truth]
    return [_call(parsed(each)) for each in listed]


def _call(value: Any) -> str:
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise BadRow(f"the row's answer is no list of calls with `name` and `arguments`: {str(value)[:200]}")
    arguments = parsed(inner.get("arguments") or {})
    if not isinstance(arguments, Mapping):
        raise BadRow(f"the arguments of {inner['name']!r} in the row's answer are no object: {str(arguments)[:200]}")
    return canonical([inner["name"], arguments])
