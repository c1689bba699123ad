"""OpenAI's plain completions: a text, or ids, that the policy continues without its chat template."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from workers.external.chat import event, usage
from workers.external.history import BadRequest, Said
from workers.external.reply import RecordedReply
from workers.external.request import Given, Request, RequestMemory, flag, length, model_of, stops, value

RAW = "raw"  # the role of a text without a template
_IDS: Final = 1 << 31  # more than any vocabulary has


def read(given: Given, memory: RequestMemory) -> Request:
    """Raises `BadRequest`."""
    return Request(
        history=memory.once(given.get("prompt"), _prompt),
        max_tokens=length(given, "max_tokens"),
        stop=stops(given, "stop"),
        model=model_of(given),
        stream=flag(given, "stream"),
        usage=bool((value(given, "stream_options") or {}).get("include_usage")),
        logprobs=value(given, "logprobs") is not None,
    )


def _prompt(prompt: Any) -> tuple[Said, ...]:
    one = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int) else prompt
    if isinstance(one, str) and one:
        return (Said(role=RAW, text=one),)
    if isinstance(one, list) and one and all(type(each) is int and 0 <= each < _IDS for each in one):
        return (Said(role=RAW, text="", token_ids=tuple(one)),)
    raise BadRequest("prompt must be one text, or one list of ids of the vocabulary")


def written(reply: RecordedReply, asked: Request, created: int) -> dict[str, Any]:
    """The answer as one object."""
    return {**_frame(reply, asked, created), "usage": usage(reply)}


def events(reply: RecordedReply, asked: Request, created: int, beats: int) -> Iterator[str]:
    """The answer as the events of a stream."""
    del beats
    frame = _frame(reply, asked, created)
    yield event(frame)
    if asked.usage:
        yield event({**frame, "choices": [], "usage": usage(reply)})
    yield "data: [DONE]\n\n"


def heartbeat(asked: Request, created: int, beats: int) -> str:
    """An event that says that the answer is still to come."""
    del beats
    choice = {"index": 0, "text": "", "finish_reason": None, "logprobs": None}
    about = {"id": "cmpl-waiting", "object": "text_completion", "created": created, "model": asked.model}
    return event({**about, "choices": [choice]})


def failure(error: Mapping[str, Any]) -> str:
    """The end of a stream that got no answer."""
    return event({"error": error})


def _frame(reply: RecordedReply, asked: Request, created: int) -> dict[str, Any]:
    choice = {"index": 0, "text": reply.plain, "finish_reason": reply.finish_reason, "logprobs": None}
    if asked.logprobs:
        texts, logprobs = [text for text, _ in reply.tokens], [logprob for _, logprob in reply.tokens]
        choice["logprobs"] = {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": []}
    about = {"id": reply.id("cmpl"), "object": "text_completion", "created": created, "model": asked.model}
    return {**about, "choices": [choice]}
