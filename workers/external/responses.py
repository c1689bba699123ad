"""OpenAI's responses: items read, answers written as items, whole or as a stream of events.

Nothing is stored: a client sends all items with each request. Items of one completion that stand together are one
message; each carries the completion's id.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from workers.agent.tools import Tool
from workers.external.history import BadRequest, Said, canonical, content_of, foreign, text_of
from workers.external.reply import RecordedReply
from workers.external.request import Given, Request, RequestMemory, flag, length, model_of, stops, value

_ROLES: Final = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_INPUT: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request, as the policy gets them and as the client knows them."""

    tools: Sequence[Tool]
    custom: Sequence[str]
    namespaces: Mapping[str, str]


def read(given: Given, memory: RequestMemory) -> Request:
    """Raises `BadRequest`."""
    if ((value(given, "text") or {}).get("format") or {}).get("type", "text") != "text":
        raise BadRequest("text.format is refused: the policy is not constrained. Leave it out")
    offered = memory.once(given.get("tools"), _offered)
    system = memory.once(given.get("instructions"), _instructions)
    raw = given.get("input")
    is_text = raw is not None and bytes(memoryview(raw)[:1]) == b'"'
    items = memory.once(raw, _text) if is_text else memory.messages(raw, _said, "input")
    return Request(
        history=[*system, *_joined(items)],
        tools=() if value(given, "tool_choice") == "none" else offered.tools,
        max_tokens=length(given, "max_output_tokens"),
        stop=stops(given, "stop"),
        model=model_of(given),
        stream=flag(given, "stream"),
        custom=offered.custom,
        namespaces=offered.namespaces,
    )


def _instructions(text: Any) -> Sequence[Said]:
    if not isinstance(text, str | None):
        raise BadRequest("instructions must be a text")
    return (Said(role="system", text=text),) if text else ()


def _text(text: Any) -> Sequence[Said]:
    return (Said(role="user", text=str(text)),)


def _offered(tools: Any) -> Offered:
    found: list[Tool] = []
    custom: list[str] = []
    namespaces: dict[str, str] = {}
    for tool in tools or ():
        match tool.get("type"):
            case "function":
                found.append(foreign(tool))
            case "custom":
                found.append(foreign({**tool, "parameters": _INPUT}))
                custom.append(tool["name"])
            case "namespace":
                inner = [foreign(each) for each in tool.get("tools") or () if each.get("type") == "function"]
                found += inner
                namespaces |= {each.name: str(tool.get("name")) for each in inner}
            case _:
                continue  # a service would run it, and there is none
    names = [tool.name for tool in found]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise BadRequest(f"two tools have the name {twice!r}: the policy could not tell them apart")
    return Offered(tools=tuple(found), custom=tuple(custom), namespaces=namespaces)


def _said(item: Any) -> Sequence[Said]:
    """One item. Those of the assistant's are parts of a message, which `_joined` makes."""
    if not isinstance(item, dict):
        raise BadRequest("an item of input is an object with a type, or a role")
    kind = item.get("type") or "message"
    ids = tuple(str(item[name]) for name in ("id", "call_id", "encrypted_content") if item.get(name))
    match kind:
        case "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise BadRequest(f"there is no role {item.get('role')!r}")
            content = item.get("content")
            if role == "user":
                text, images = content_of(content)
                return (Said(role=role, text=text, images=images),)
            text = text_of(content)
            return (Said(role=role, text=text.strip(), ids=ids) if role == "assistant" else Said(role=role, text=text),)
        case "reasoning":
            return (Said(role="assistant", text="", ids=ids),)
        case "function_call":
            call = (str(item.get("name")), canonical(item.get("arguments")))
            return (Said(role="assistant", text="", calls=(call,), ids=ids),)
        case "custom_tool_call":
            call = (str(item.get("name")), canonical({"input": str(item.get("input") or "")}))
            return (Said(role="assistant", text="", calls=(call,), ids=ids),)
        case "function_call_output" | "custom_tool_call_output":
            text, images = content_of(item.get("output"))
            return (Said(role="tool", text=text, answers=str(item.get("call_id") or ""), images=images),)
        case _:
            raise BadRequest(f"an item of type {kind!r} is not taken: this policy reads messages, calls and outputs")


def _joined(items: Sequence[Said]) -> Iterator[Said]:
    """Neighbouring items of the assistant's as one message."""
    parts: list[Said] = []
    for said in items:
        if said.role == "assistant":
            parts.append(said)
            continue
        yield from _message(parts)
        yield said
        parts = []
    yield from _message(parts)


def _message(parts: Sequence[Said]) -> Sequence[Said]:
    if len(parts) < 2:
        return parts
    return (
        Said(
            role="assistant",
            text="\n".join(each.text for each in parts if each.text),
            calls=tuple(call for each in parts for call in each.calls),
            ids=tuple(given for each in parts for given in each.ids),
        ),
    )


def written(reply: RecordedReply, asked: Request, created: int) -> dict[str, Any]:
    """The answer as one object. One that was cut is complete, too: Codex gives up where it is not."""
    return {**_frame(reply, asked, created, "completed"), "output": _items(reply, asked), "usage": _usage(reply)}


def events(reply: RecordedReply, asked: Request, created: int, beats: int) -> Iterator[str]:
    """The answer as the events of a stream; the first of its heartbeats, if it has any, has created the response."""
    count = itertools.count(beats)
    begun = {**_frame(reply, asked, created, "in_progress"), "output": [], "usage": None}
    if not beats:
        yield _event("response.created", next(count), response=begun)
    yield _event("response.in_progress", next(count), response=begun)
    for place, item in enumerate(_items(reply, asked)):
        empty, fills = _parts(item)
        yield _event("response.output_item.added", next(count), output_index=place, item=empty)
        for kind, more in fills:
            yield _event(kind, next(count), item_id=item["id"], output_index=place, **more)
        yield _event("response.output_item.done", next(count), output_index=place, item=item)
    yield _event("response.completed", next(count), response=written(reply, asked, created))


def heartbeat(asked: Request, created: int, beats: int) -> str:
    """An event that says that the answer is still to come. OpenAI's client fails on a stream that begins otherwise."""
    kind = "response.in_progress" if beats else "response.created"
    about = {"created_at": created, "model": asked.model, "status": "in_progress", "output": []}
    waiting = {"id": "resp_waiting", "object": "response", **about}
    return _event(kind, beats, response=waiting)


def failure(error: Mapping[str, Any]) -> str:
    """The end of a stream that got no answer, in words after which Codex does not ask again."""
    told = {"code": error.get("code") or error["type"], "message": error["message"]}
    if told["code"] == "limit_reached":
        told["code"] = "insufficient_quota"
    failed = {"id": "resp_failed", "object": "response", "status": "failed", "error": told, "output": []}
    return _event("response.failed", 0, response=failed)


def _frame(reply: RecordedReply, asked: Request, created: int, status: str) -> dict[str, Any]:
    return {
        "id": reply.id("resp"),
        "object": "response",
        "created_at": created,
        "status": status,
        "model": asked.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto" if asked.tools else "none",
        "tools": [],
        "top_p": None,
    }


def _items(reply: RecordedReply, asked: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if reply.reasoning:
        thought = {"type": "reasoning_text", "text": reply.reasoning}
        sealed = {"summary": [], "content": [thought], "encrypted_content": reply.id("sealed")}
        found.append({"type": "reasoning", "id": reply.id("rs"), **sealed})
    if reply.said.text or not reply.said.calls:
        text = {"type": "output_text", "text": reply.said.text, "annotations": [], "logprobs": []}
        whole = {"role": "assistant", "status": "completed", "content": [text]}
        found.append({"type": "message", "id": reply.id("msg"), **whole})
    return [*found, *(_call(reply, asked, place) for place in range(len(reply.said.calls)))]


def _call(reply: RecordedReply, asked: Request, place: int) -> dict[str, Any]:
    name, given = reply.said.calls[place]
    about = {"id": reply.id("fc", place), "call_id": reply.id("call", place), "name": name, "status": "completed"}
    if name in asked.custom:
        told = json.loads(given)
        text = told.get("input") if isinstance(told, dict) else None
        return {"type": "custom_tool_call", **about, "input": text if isinstance(text, str) else given}
    space = {"namespace": asked.namespaces[name]} if name in asked.namespaces else {}
    return {"type": "function_call", **about, **space, "arguments": given}


def _parts(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[tuple[str, Mapping[str, Any]]]]:
    """An item before it has its text, and the events that bring it."""
    match item["type"]:
        case "message":
            [part] = item["content"]
            at, empty = {"content_index": 0}, {**part, "text": ""}
            return {**item, "content": [], "status": "in_progress"}, [
                ("response.content_part.added", {**at, "part": empty}),
                ("response.output_text.delta", {**at, "delta": part["text"], "logprobs": []}),
                ("response.output_text.done", {**at, "text": part["text"], "logprobs": []}),
                ("response.content_part.done", {**at, "part": part}),
            ]
        case "reasoning":
            [thought] = item["content"]
            at = {"content_index": 0}
            return {**item, "content": []}, [
                ("response.reasoning_text.delta", {**at, "delta": thought["text"]}),
                ("response.reasoning_text.done", {**at, "text": thought["text"]}),
            ]
        case "custom_tool_call":
            return {**item, "input": "", "status": "in_progress"}, [
                ("response.custom_tool_call_input.delta", {"delta": item["input"]}),
                ("response.custom_tool_call_input.done", {"input": item["input"]}),
            ]
        case _:
            return {**item, "arguments": "", "status": "in_progress"}, [
                ("response.function_call_arguments.delta", {"delta": item["arguments"]}),
                ("response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}),
            ]


def _usage(reply: RecordedReply) -> dict[str, Any]:
    total = reply.prompt_tokens + reply.completion_tokens
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }


def _event(kind: str, number: int, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **fields})}\n\n"
