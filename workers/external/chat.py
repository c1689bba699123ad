"""OpenAI's chat completions: requests read, replies written, whole or as a stream of events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.agent.tools import Tool
from workers.external.history import BadRequest, Said, canonical, foreign, text_of
from workers.external.recording import RecordedReply

MODEL = "policy"
_ROLES = {"developer": "system", "function": "tool"}


def read(body: Mapping[str, Any]) -> tuple[list[Said], list[Tool], int | None]:
    """The history, the tools and the wanted length. Raises `BadRequest`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list of at least one message")
    if body.get("n") not in {None, 1}:
        raise BadRequest("n must be 1: each rollout is one conversation")
    tools: list[Tool] = [foreign(tool.get("function") or {}) for tool in body.get("tools") or ()]
    return [_said(message) for message in messages], tools, _length(body)


def _length(body: Mapping[str, Any]) -> int | None:
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    return wanted if isinstance(wanted, int) and wanted > 0 else None


def _said(message: Any) -> Said:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest("a message is an object with a role")
    role = _ROLES.get(message["role"], message["role"])
    if role not in {"system", "user", "assistant", "tool"}:
        raise BadRequest(f"there is no role {role!r}")
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls = [(str(each.get("name")), canonical(each.get("arguments"))) for each in functions]
    text = text_of(message.get("content"))
    return Said(role=role, text=text.strip() if role == "assistant" else text, calls=tuple(calls))


def written(reply: RecordedReply, created: int) -> dict[str, Any]:
    """The answer as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.said.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.said.calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return {**_frame(reply, created, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def events(reply: RecordedReply, created: int, *, usage: bool) -> Iterator[str]:
    """The answer as the events of a stream."""
    delta: dict[str, Any] = {"role": "assistant", "content": reply.said.text}
    if reply.reasoning:
        delta["reasoning_content"] = reply.reasoning
    if reply.said.calls:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(_calls(reply))]
    frame = _frame(reply, created, "chat.completion.chunk")
    for piece, finish in ((delta, None), ({}, _finish(reply))):
        yield _event({**frame, "choices": [{"index": 0, "delta": piece, "finish_reason": finish, "logprobs": None}]})
    if usage:
        yield _event({**frame, "choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def _frame(reply: RecordedReply, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.number}", "object": kind, "created": created, "model": MODEL}


def _calls(reply: RecordedReply) -> Sequence[dict[str, Any]]:
    return [
        {"id": f"call_{reply.number}_{place}", "type": "function", "function": {"name": name, "arguments": given}}
        for place, (name, given) in enumerate(reply.said.calls)
    ]


def _finish(reply: RecordedReply) -> str:
    return "tool_calls" if reply.said.calls and reply.finish_reason == "stop" else reply.finish_reason


def _usage(reply: RecordedReply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.completion_tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens, "total_tokens": total}


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
