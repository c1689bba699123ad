"""One generating request of a fake backend, from its arrival to its answer."""

import asyncio
import time

import msgspec

from prorl_mq.testing.http_server import HttpResponse
from prorl_mq.testing.sampling import Reply, made_up_logprobs
from prorl_mq.testing.wire import Fault, GenerateCall, Sampled, error_answer


class LoggedRequest(msgspec.Struct, kw_only=True):
    """One generating request as the backend saw it. `state`: running, done, aborted, gone (client left), failed."""

    call: GenerateCall
    started: float
    state: str = "running"
    fault: Fault | None = None
    ended: float | None = None


class Running:
    """A request under way: `aborted` ends it early; `versions` has when each set of weights took over."""

    def __init__(self, log: LoggedRequest, version: str) -> None:
        self.log = log
        self.aborted = asyncio.Event()
        self.versions: list[tuple[str, float]] = [(version, log.started)]

    async def spend(self, seconds: float) -> float:
        """Waits so long, or until aborted. Returns the share of the time that passed: 1 unless aborted."""
        try:
            async with asyncio.timeout(seconds):
                await self.aborted.wait()
        except TimeoutError:
            return 1.0
        return min((time.perf_counter() - self.log.started) / seconds, 1 - 1e-9)


def sample_result(
    running: Running, reply: Reply, share: float, *, cached_tokens: int, processed_logprobs: bool
) -> Sampled:
    """What of the reply was sampled: all of it, or the first `share` when the request was aborted."""
    kept = int(len(reply.ids) * share) if share < 1.0 else len(reply.ids)
    logprobs = reply.logprobs
    if logprobs is None:  # with top-k 1 one candidate is left, and its processed log-probability is 0
        certain = processed_logprobs and running.log.call.params.top_k == 1
        logprobs = [0.0] * len(reply.ids) if certain else made_up_logprobs(reply.ids)
    return Sampled(
        ids=reply.ids[:kept],
        logprobs=logprobs[:kept],
        finish_reason="abort" if share < 1.0 else (reply.finish_reason or "stop"),
        cached_tokens=cached_tokens,
        versions=_version_spans(running, kept, time.perf_counter()),
    )


def _version_spans(running: Running, tokens: int, now: float) -> list[tuple[str, int, int]]:
    """Tokens are spread evenly over the request's time; each belongs to the weights of its moment."""
    start, length = running.log.started, max(now - running.log.started, 1e-9)
    begins = [round((since - start) / length * tokens) for _, since in running.versions]
    ends = [*begins[1:], tokens]
    names = [version for version, _ in running.versions]
    return [(name, a, b) for name, a, b in zip(names, begins, ends, strict=True) if b > a]


def failure(fault: Fault) -> HttpResponse | None:
    """The answer to a request that fails as a whole; None for faults within a 200."""
    match fault:
        case Fault.REFUSED:
            return error_answer(400, "this fault was asked for")
        case Fault.BUSY:
            return error_answer(429, "this fault was asked for")
        case Fault.ERROR:
            return error_answer(500, "EngineCore encountered an issue")._replace(close=True)
        case Fault.RESET:
            return HttpResponse(cut_after=0)
        case Fault.GARBAGE:
            return HttpResponse(body=b"<html>proxy</html>")
        case _:
            return None
