"""Anthropic's messages: requests read, replies written, whole or as a stream of events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.agent.tools import Tool
from workers.external.history import BadRequest, Said, canonical, content_of, foreign, text_of
from workers.external.reply import RecordedReply
from workers.external.request import Given, Request, RequestMemory, flag, length, model_of, stops, value

_APART = frozenset({"tool_result", "tool_use", "thinking", "redacted_thinking"})


def read(given: Given, memory: RequestMemory) -> Request:
    """Raises `BadRequest`."""
    system = memory.once(given.get("system"), _system)
    choice = (value(given, "tool_choice") or {}).get("type", "auto")
    if choice not in {"auto", "none"}:
        raise BadRequest(f"tool_choice {choice!r} is refused: calls cannot be forced. Send auto, or none")
    return Request(
        history=[*system, *memory.messages(given.get("messages"), _said, "messages")],
        tools=() if choice == "none" else memory.once(given.get("tools"), _tools),
        max_tokens=length(given, "max_tokens"),
        stop=stops(given, "stop_sequences"),
        model=model_of(given),
        stream=flag(given, "stream"),
        thinking=(value(given, "thinking") or {}).get("type", "disabled") != "disabled",
    )


def _system(system: Any) -> Sequence[Said]:
    """Without the line about billing that Claude Code puts there, which may change with every request."""
    if isinstance(system, list):
        system = [each for each in system if not str(each.get("text", "")).startswith("x-anthropic-billing-header")]
    text = text_of(system)
    return (Said(role="system", text=text),) if text else ()


def _tools(tools: Any) -> Sequence[Tool]:
    for tool in tools or ():
        if "input_schema" not in tool:
            raise BadRequest(f"the tool {tool.get('name')!r} is one that a service would run: there is none here")
    return tuple(foreign({**tool, "parameters": tool["input_schema"]}) for tool in tools or ())


def _said(message: Any) -> Sequence[Said]:
    """A message of blocks; the results of tools among them are messages of their own here."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in {"user", "assistant", "system"}:
        raise BadRequest(f"a message is the user's, the assistant's or the system's, not {role!r}'s")
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise BadRequest("content is a string, or a list of blocks")
    shown = [block for block in blocks if block.get("type") not in _APART]
    text, images = content_of(shown) if role == "user" else (text_of(shown), ())
    if role == "system":
        return (Said(role="system", text=text),)
    if role == "assistant":
        return (_answer(blocks, text),)
    results = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    return (*results, *((Said(role="user", text=text, images=images),) if text or not results else ()))


def _result(block: Mapping[str, Any]) -> Said:
    text, images = content_of(block.get("content"))
    return Said(role="tool", text=text, answers=str(block.get("tool_use_id") or ""), images=images)


def _answer(blocks: Sequence[Mapping[str, Any]], text: str) -> Said:
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    calls = tuple((str(block.get("name")), canonical(block.get("input") or {})) for block in uses)
    ids = [block.get(name) for block in blocks for name in ("id", "signature", "data")]
    return Said(role="assistant", text=text.strip(), calls=calls, ids=tuple(str(each) for each in ids if each))


def written(reply: RecordedReply, asked: Request, created: int) -> dict[str, Any]:
    """The answer as one object."""
    del created
    return {**_frame(reply, asked), **_stop(reply), "content": _blocks(reply, asked), "usage": _usage(reply)}


def events(reply: RecordedReply, asked: Request, created: int, beats: int) -> Iterator[str]:
    """The answer as the events of a stream."""
    del created, beats
    usage = {**_usage(reply), "output_tokens": 0}
    start = {**_frame(reply, asked), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event({"type": "message_start", "message": start})
    for index, block in enumerate(_blocks(reply, asked)):
        empty, deltas = _parts(block)
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    told = {"output_tokens": reply.completion_tokens}
    yield _event({"type": "message_delta", "delta": _stop(reply), "usage": told})
    yield _event({"type": "message_stop"})


def heartbeat(asked: Request, created: int, beats: int) -> str:
    """An event that says that the answer is still to come."""
    del asked, created, beats
    return _event({"type": "ping"})


def failure(error: Mapping[str, Any]) -> str:
    """The end of a stream that got no answer."""
    return _event({"type": "error", "error": error})


def _parts(block: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """An empty block, and what fills it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            thought = {"type": "thinking_delta", "thinking": block["thinking"]}
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [thought, signed]
        case _:
            given = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            return {**block, "input": {}}, [given]


def _frame(reply: RecordedReply, asked: Request) -> dict[str, Any]:
    return {"id": reply.id("msg"), "type": "message", "role": "assistant", "model": asked.model}


def _blocks(reply: RecordedReply, asked: Request) -> list[dict[str, Any]]:
    shown = [{"type": "thinking", "thinking": reply.reasoning, "signature": reply.id("sig")}]
    thoughts = shown if asked.thinking and reply.reasoning else []
    text = [{"type": "text", "text": reply.said.text}] if reply.said.text or not reply.said.calls else []
    calls = [
        {"type": "tool_use", "id": reply.id("toolu", place), "name": name, "input": json.loads(given)}
        for place, (name, given) in enumerate(reply.said.calls)
    ]
    return [*thoughts, *text, *calls]


def _stop(reply: RecordedReply) -> dict[str, Any]:
    if reply.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stopped_by}
    reason = "max_tokens" if reply.finish_reason == "length" else "tool_use" if reply.said.calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(reply: RecordedReply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}


def _event(data: Mapping[str, Any]) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"
