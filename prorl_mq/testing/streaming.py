"""A fake backend's answers as streams of events, which can be held and cut at a token."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from prorl_mq.process.http_server import StreamCut
from prorl_mq.testing.exchange import Running, sample_result
from prorl_mq.testing.experts import FakeExperts
from prorl_mq.testing.sampling import Reply
from prorl_mq.testing.wire import SGLANG_GENERATE, FakeCompletion, GenerateCall, write_answer

if TYPE_CHECKING:
    from prorl_mq.testing.fake_backend import FakeBackend


class Flow:
    """The course of streams. Every public attribute may be changed while they run."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self.hold_at: int | None = None  # streams stand still behind so many tokens
        self.counts = True  # events count the tokens so far, where they are asked to
        self.totals = True  # streams end with the number of their tokens
        self.loses = False  # they leave their second token out, and say nothing of it
        self.incremental = True  # of SGLang: an event has new tokens alone, else all tokens so far
        self.sent = 0  # tokens, of all streams
        self._cuts: deque[int] = deque()
        self._notify = notify

    def cut_next(self, *places: int) -> None:
        """The next streams drop their connection behind so many tokens, one each."""
        self._cuts.extend(places)

    def clear(self) -> None:
        """Forgets cuts that are still to come."""
        self._cuts.clear()

    def next_cut(self) -> int | None:
        return self._cuts.popleft() if self._cuts else None

    def passed(self) -> None:
        self.sent += 1
        self._notify()


async def events(backend: "FakeBackend", running: Running, reply: Reply) -> AsyncIterator[bytes]:
    """The events of an answer, a token each. Raises `StreamCut` where the connection is to drop."""
    flow, log, total = backend.flow, running.log, len(reply.ids)
    cut, sent = flow.next_cut(), 0
    mode = backend.logprobs_mode or ("scaled" if log.call.route == SGLANG_GENERATE else "processed")
    while True:
        running.streamed = (sent, total)
        if cut == sent:
            log.state = "cut"
            raise StreamCut
        await _stands(backend, running, sent)
        if sent < total and backend.token_ms:
            await running.spend(backend.token_ms / 1000)
        if running.aborted or sent == total:
            break
        sent += 1
        if not (flow.loses and sent == 2 < total):
            part = _between(running, reply, sent - 1, sent, mode)
            yield _event(backend, log.call, part, _between(running, reply, 0, sent, mode))
        flow.passed()
    share = sent / total if running.aborted else 1.0
    hits = backend.cache.cached_tokens(log.call.prompt_ids, log.call.cache_salt)
    backend.served += 1
    backend.prompt_tokens += len(log.call.prompt_ids)
    backend.hit_tokens += hits
    kept = min(share, 1 - 1e-9) if running.aborted else 1.0
    whole = sample_result(running, reply, kept, cached_tokens=hits, logprobs_mode=mode)
    whole = msgspec.structs.replace(
        whole, ids=reply.ids[:sent], logprobs=_between(running, reply, 0, sent, mode).logprobs
    )
    backend.cache.store([*log.call.prompt_ids, *whole.ids], log.call.cache_salt)
    log.state = "aborted" if running.aborted else "done"
    for last in _last(backend, log.call, whole):
        yield last


async def _stands(backend: "FakeBackend", running: Running, sent: int) -> None:
    """Returns once the next token may be sent, or the request was aborted."""
    while not running.aborted and (backend.frozen or backend.flow.hold_at == sent):
        running.wake.clear()
        await running.wake.wait()
    await asyncio.sleep(0)


def _between(running: Running, reply: Reply, start: int, end: int, mode: str) -> FakeCompletion:
    whole = sample_result(running, reply, 1.0, cached_tokens=0, logprobs_mode=mode)
    return FakeCompletion(
        ids=whole.ids[start:end],
        logprobs=whole.logprobs[start:end],
        finish_reason="length",
        cached_tokens=0,
        versions=[],
    )


def _event(backend: "FakeBackend", call: GenerateCall, part: FakeCompletion, so_far: FakeCompletion) -> bytes:
    if call.route == SGLANG_GENERATE:
        told = _told(backend, call, part if backend.flow.incremental else so_far)
        count = len(so_far.ids) if backend.flow.counts else None
        told["meta_info"] |= {"finish_reason": None, "completion_tokens": count}
        del told["meta_info"]["weight_versions"]
    else:
        told = _told(backend, call, part)
        told["choices"][0] |= {"finish_reason": None, "weight_versions": None}
        asked = (call.raw.get("stream_options") or {}).get("continuous_usage_stats")
        usage = told["usage"] | {"completion_tokens": len(so_far.ids)}
        told["usage"] = usage if asked and backend.flow.counts else None
    return msgspec.json.encode(told)


def _last(backend: "FakeBackend", call: GenerateCall, whole: FakeCompletion) -> list[bytes]:
    """The events behind the last token: why it was the last, how many there were."""
    told = _told(backend, call, whole, backend.experts)
    if call.route == SGLANG_GENERATE:
        if backend.flow.incremental:
            told["meta_info"]["output_token_logprobs"] = told["output_ids"] = []
        if not backend.flow.totals:
            del told["meta_info"]["completion_tokens"]
        return [msgspec.json.encode(told), b"[DONE]"]
    usage = told["usage"] if backend.flow.totals else None
    choice = told["choices"][0]
    choice["token_ids"] = []
    choice["logprobs"] = None
    told["usage"] = None
    return [msgspec.json.encode(told), msgspec.json.encode({"choices": [], "usage": usage}), b"[DONE]"]


def _told(backend: "FakeBackend", call: GenerateCall, part: FakeCompletion, experts: FakeExperts | None = None) -> Any:
    body = write_answer(call, part, old_shape=False, version=backend.version, ids_in=backend.ids_in, experts=experts)
    return msgspec.json.decode(body)
