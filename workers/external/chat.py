"""OpenAI's chat completions: requests read, replies written, whole or as a stream of events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.agent.tools import Tool
from workers.external.history import BadRequest, Said, canonical, content_of, foreign, text_of
from workers.external.reply import RecordedReply
from workers.external.request import Given, Request, RequestMemory, flag, length, model_of, stops, value

_ROLES = {"developer": "system", "function": "tool"}


def read(given: Given, memory: RequestMemory) -> Request:
    """Raises `BadRequest`."""
    forbidden = value(given, "tool_choice") == "none"
    return Request(
        history=memory.messages(given.get("messages"), _said, "messages"),
        tools=() if forbidden else memory.once(given.get("tools"), _tools),
        max_tokens=length(given, "max_completion_tokens", "max_tokens"),
        stop=stops(given, "stop"),
        model=model_of(given),
        stream=flag(given, "stream"),
        usage=bool((value(given, "stream_options") or {}).get("include_usage")),
        logprobs=flag(given, "logprobs"),
    )


def _tools(tools: Any) -> Sequence[Tool]:
    return tuple(foreign(tool.get("function") or {}) for tool in tools or ())


def _said(message: Any) -> Sequence[Said]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest("a message is an object with a role")
    role = _ROLES.get(message["role"], message["role"])
    if role not in {"system", "user", "assistant", "tool"}:
        raise BadRequest(f"there is no role {role!r}")
    content = message.get("content")
    text, images = content_of(content) if role in {"user", "tool"} else (text_of(content), ())
    if role != "assistant":
        return (Said(role=role, text=text, answers=str(message.get("tool_call_id") or ""), images=images),)
    told = message.get("tool_calls") or ()
    functions = [call.get("function") or {} for call in told]
    calls = [(str(each.get("name")), canonical(each.get("arguments"))) for each in functions]
    ids = tuple(str(call.get("id") or "") for call in told)
    return (Said(role=role, text=text.strip(), calls=tuple(calls), ids=ids),)


def written(reply: RecordedReply, asked: Request, created: int) -> dict[str, Any]:
    """The answer as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.said.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.said.calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": _logprobs(reply, asked)}
    return {**_frame(asked, created, "chat.completion", reply), "choices": [choice], "usage": usage(reply)}


def events(reply: RecordedReply, asked: Request, created: int, beats: int) -> Iterator[str]:
    """The answer as the events of a stream."""
    del beats
    delta: dict[str, Any] = {"role": "assistant", "content": reply.said.text}
    if reply.reasoning:
        delta["reasoning_content"] = reply.reasoning
    if reply.said.calls:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(_calls(reply))]
    frame = _frame(asked, created, "chat.completion.chunk", reply)
    logprobs = _logprobs(reply, asked)
    for piece, finish, told in ((delta, None, logprobs), ({}, _finish(reply), None)):
        yield event({**frame, "choices": [{"index": 0, "delta": piece, "finish_reason": finish, "logprobs": told}]})
    if asked.usage:
        yield event({**frame, "choices": [], "usage": usage(reply)})
    yield "data: [DONE]\n\n"


def heartbeat(asked: Request, created: int, beats: int) -> str:
    """An event that says that the answer is still to come."""
    del beats
    return event(
        {
            **_frame(asked, created, "chat.completion.chunk"),
            "choices": [{"index": 0, "delta": {}, "finish_reason": None, "logprobs": None}],
        }
    )


def failure(error: Mapping[str, Any]) -> str:
    """The end of a stream that got no answer."""
    return event({"error": error})


def _frame(asked: Request, created: int, kind: str, reply: RecordedReply | None = None) -> dict[str, Any]:
    name = "chatcmpl-waiting" if reply is None else reply.id("chatcmpl")
    return {"id": name, "object": kind, "created": created, "model": asked.model}


def _calls(reply: RecordedReply) -> Sequence[dict[str, Any]]:
    return [
        {"id": reply.id("call", place), "type": "function", "function": {"name": name, "arguments": given}}
        for place, (name, given) in enumerate(reply.said.calls)
    ]


def _logprobs(reply: RecordedReply, asked: Request) -> dict[str, Any] | None:
    if not asked.logprobs:
        return None
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in reply.tokens
    ]
    return {"content": content, "refusal": None}


def _finish(reply: RecordedReply) -> str:
    return "tool_calls" if reply.said.calls and reply.finish_reason == "stop" else reply.finish_reason


def usage(reply: RecordedReply) -> dict[str, int]:
    """The lengths of what was sent and sampled, in tokens."""
    total = reply.prompt_tokens + reply.completion_tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens, "total_tokens": total}


def event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
