"""One answer to the messages of a row, which the model gets as they are: no system message and no tools of ours."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.agent.hermes import Message
from workers.agent.loading import policy_renderer
from workers.agent.loop import run_agent
from workers.agent.pictures.messages import attached
from workers.agent.result import AgentResult
from workers.agent.tools import Tool, ToolAnswer, ToolContext
from workers.handler import Run
from workers.handlers.rows import QUESTIONS, BadRow, fitting, parsed


class FunctionSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A function as a row declares it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


def messages_of(payload: Mapping[str, Any]) -> list[Message]:
    """The conversation that a row begins with: its messages, or its question as the user's. Raises `BadRow`."""
    for name in QUESTIONS:
        value = parsed(payload.get(name))
        if isinstance(value, list) and value:
            return fitting(value, list[Message])
        if isinstance(value, str) and value.strip():
            return [Message(role="user", content=value)]
    raise BadRow(f"the row has no question: none of {', '.join(QUESTIONS)} holds text or messages")


def declared(given: Any) -> list[Tool]:
    """The functions that a row declares, to be shown and not to be run. Raises `BadRow`."""
    value = parsed(given)
    if not value:
        return []
    listed = value if isinstance(value, list) else [value]
    inner = [parsed(each) for each in listed]
    plain = [each["function"] if isinstance(each, Mapping) and "function" in each else each for each in inner]
    return [
        Tool(name=each.name, description=each.description, arguments=each.parameters, run=_not_run)
        for each in fitting(plain, list[FunctionSchema])
    ]


async def answer_once(context: Run, tools: Sequence[Tool] = ()) -> AgentResult:
    """The model's one answer; calls in it are not run, and stand in the turn's `client_calls`. Raises `BadRow`."""
    job = context.job
    return await run_agent(
        policy=context.policy,
        renderer=await policy_renderer(),
        messages=attached(messages_of(job.payload)),
        tools=tools,
        sandbox=None,
        sampling=job.sampling,
        sample=job.sample,
        deadline=context.clock,
        log=context.log,
        runs_calls=False,
    )


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values: keys in order, and 2.0 as 2."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _not_run(_: ToolContext, __: Any) -> ToolAnswer:
    raise LookupError("a function that a row declares is not run here")
