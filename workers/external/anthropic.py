"""Anthropic's messages: requests read, replies written, whole or as a stream of events."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workers.agent.tools import Tool
from workers.external.chat import MODEL
from workers.external.history import BadRequest, Said, canonical, foreign, text_of
from workers.external.recording import RecordedReply


def read(body: Mapping[str, Any]) -> tuple[list[Said], list[Tool], int | None]:
    """The history, the tools and the wanted length. Raises `BadRequest`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list of at least one message")
    system = text_of(body.get("system"))
    history = [Said(role="system", text=system)] if system else []
    history += [said for message in messages for said in _said(message)]
    tools: list[Tool] = [foreign({**tool, "parameters": tool.get("input_schema")}) for tool in body.get("tools") or ()]
    wanted = body.get("max_tokens")
    return history, tools, wanted if isinstance(wanted, int) and wanted > 0 else None


def _said(message: Any) -> list[Said]:
    """A message of blocks; the results of tools among them are messages of their own here."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in {"user", "assistant"}:
        raise BadRequest(f"a message is the user's or the assistant's, not {role!r}'s")
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise BadRequest("content is a string, or a list of blocks")
    kinds = [block.get("type") if isinstance(block, dict) else None for block in blocks]
    results = [
        Said(role="tool", text=text_of(block.get("content")))
        for block, kind in zip(blocks, kinds, strict=True)
        if kind == "tool_result"
    ]
    calls = [
        (str(block.get("name")), canonical(block.get("input") or {}))
        for block, kind in zip(blocks, kinds, strict=True)
        if kind == "tool_use"
    ]
    apart = {"tool_result", "tool_use", "thinking", "redacted_thinking"}
    text = text_of([block for block, kind in zip(blocks, kinds, strict=True) if kind not in apart])
    if role == "assistant":
        return [Said(role="assistant", text=text.strip(), calls=tuple(calls))]
    return [*results, *([Said(role="user", text=text)] if text or not results else [])]


def written(reply: RecordedReply) -> dict[str, Any]:
    """The answer as one object."""
    return {**_frame(reply), "content": _blocks(reply), "stop_reason": _stop(reply), "usage": _usage(reply)}


def events(reply: RecordedReply) -> Iterator[str]:
    """The answer as the events of a stream."""
    usage = {**_usage(reply), "output_tokens": 0}
    start = {**_frame(reply), "content": [], "stop_reason": None, "usage": usage}
    yield _event({"type": "message_start", "message": start})
    for index, block in enumerate(_blocks(reply)):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": _stop(reply), "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": reply.completion_tokens}})
    yield _event({"type": "message_stop"})


def _frame(reply: RecordedReply) -> dict[str, Any]:
    about = {"id": f"msg_{reply.number}", "type": "message", "role": "assistant", "model": MODEL}
    return {**about, "stop_sequence": None}


def _blocks(reply: RecordedReply) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": reply.said.text}] if reply.said.text or not reply.said.calls else []
    calls = [
        {"type": "tool_use", "id": f"toolu_{reply.number}_{place}", "name": name, "input": json.loads(given)}
        for place, (name, given) in enumerate(reply.said.calls)
    ]
    return [*text, *calls]


def _stop(reply: RecordedReply) -> str:
    if reply.finish_reason == "length":
        return "max_tokens"
    return "tool_use" if reply.said.calls else "end_turn"


def _usage(reply: RecordedReply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}


def _event(value: Mapping[str, Any]) -> str:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n"
