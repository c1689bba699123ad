"""One generating request of a fake backend, from its arrival to its answer."""

import asyncio
import time
from collections.abc import Collection

import msgspec

from prorl_mq.process.http_server import HttpResponse
from prorl_mq.testing.sampling import Reply, made_up_logprobs
from prorl_mq.testing.wire import SGLANG_GENERATE, FakeCompletion, FakeFault, GenerateCall, error_answer

COLD = 0.01


class LoggedRequest(msgspec.Struct, kw_only=True):
    """One generating request as the backend saw it. `state`: running, done, aborted, gone (client left), failed."""

    call: GenerateCall
    started: float
    state: str = "running"
    fault: FakeFault | None = None
    ended: float | None = None


class Running:
    """A request under way. A share of it, from 0 to 1, stands for how many of its tokens are sampled."""

    def __init__(self, log: LoggedRequest, version: str) -> None:
        self.log = log
        self.versions: list[tuple[str, float]] = [(version, 0.0)]  # each with the share at which it took over
        self.begun = False  # it has left every queue
        self.streamed: tuple[int, int] | None = None  # tokens sent by now, of how many
        self.wake = asyncio.Event()  # set by an abort, and at the end of a pause
        self._aborted = asyncio.Event()
        self._kept = 1.0
        self._since = log.started
        self._seconds = 0.0

    @property
    def aborted(self) -> bool:
        return self._aborted.is_set()

    def share(self) -> float:
        """The share of it that is sampled by now, going by the clock, or by what was sent of a stream."""
        if self.streamed is not None:
            return self.streamed[0] / max(1, self.streamed[1])
        return min((time.perf_counter() - self._since) / self._seconds, 1.0) if self._seconds > 0 else 0.0

    def abort(self, share: float | None = None) -> None:
        """Ends it now, with this share of its tokens; by the clock when None."""
        self._kept = min(self.share() if share is None else share, 1 - 1e-9)
        self._aborted.set()
        self.wake.set()

    def change_version(self, version: str, share: float | None = None) -> None:
        """New weights from this share on; from now when None."""
        self.versions.append((version, self.share() if share is None else share))

    async def spend(self, seconds: float) -> float:
        """Waits so long, or until aborted. Returns the share that was sampled: 1 unless aborted."""
        self._since, self._seconds = time.perf_counter(), seconds
        try:
            async with asyncio.timeout(seconds):
                await self._aborted.wait()
        except TimeoutError:
            return 1.0
        return self._kept


def sample_result(
    running: Running, reply: Reply, share: float, *, cached_tokens: int, logprobs_mode: str
) -> FakeCompletion:
    """The sampled part of the reply: all of it, or the first `share` when the request was aborted."""
    kept = int(len(reply.ids) * share) if share < 1.0 else len(reply.ids)
    logprobs = reply.logprobs
    if logprobs is None:
        certain = _certain(running.log.call, logprobs_mode)
        logprobs = [0.0] * len(reply.ids) if certain else made_up_logprobs(reply.ids)
    return FakeCompletion(
        ids=reply.ids[:kept],
        logprobs=logprobs[:kept],
        finish_reason="abort" if share < 1.0 else (reply.finish_reason or "stop"),
        cached_tokens=cached_tokens,
        versions=_version_spans(running, len(reply.ids), kept),
    )


def _certain(call: GenerateCall, mode: str) -> bool:
    """True where the log-probability of what is sampled is 0: one candidate is left, or the temperature leaves one."""
    cold = call.params.temperature <= COLD and call.params.top_k != 1  # with top-k 1, SGLang does not scale at all
    return (mode == "processed" and call.params.top_k == 1) or (mode != "raw" and cold)


def _version_spans(running: Running, total: int, kept: int) -> list[tuple[str, int, int]]:
    """Which of the kept tokens each set of weights sampled."""
    begins = [min(round(share * total), kept) for _, share in running.versions]
    ends = [*begins[1:], kept]
    names = [version for version, _ in running.versions]
    return [(name, a, b) for name, a, b in zip(names, begins, ends, strict=True) if b > a]


def refused(call: GenerateCall, models: Collection[str], context_tokens: int) -> HttpResponse | None:
    """The answer to a request for what a backend does not have, or that does not fit into its context."""
    if call.model is not None and call.model not in models:
        return error_answer(404, f"The model `{call.model}` does not exist. Valid aliases: {', '.join(models)}.")
    if len(call.prompt_ids) >= context_tokens:
        has = f"maximum context length is {context_tokens} tokens"
        return error_answer(400, f"This model's {has}. However, your prompt contains {len(call.prompt_ids)}.")
    wanted = len(call.prompt_ids) + (call.params.max_tokens or 0)
    if call.route == SGLANG_GENERATE and wanted >= context_tokens:
        has = f"model's maximum context length of {context_tokens} tokens"
        return error_answer(400, f"Requested token count exceeds the {has}. You requested a total of {wanted}.")
    return None


def failure(fault: FakeFault) -> HttpResponse | None:
    """The answer to a request that fails as a whole; None for faults within a 200."""
    match fault:
        case FakeFault.REFUSED:
            return error_answer(400, "this fault was asked for")
        case FakeFault.BUSY:
            return error_answer(429, "this fault was asked for")
        case FakeFault.ERROR:
            return error_answer(500, "EngineCore encountered an issue")._replace(close=True)
        case FakeFault.RESET:
            return HttpResponse(cut_after=0)
        case FakeFault.GARBAGE:
            return HttpResponse(body=b"<html>proxy</html>")
        case _:
            return None
