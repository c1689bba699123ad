"""A scripted inference backend: the token routes of vLLM, SGLang and ProRL without a model.

    async with FakeBackend(reply=scripted([[5, 6, 2], [7, 2]]), latency_ms=5) as backend:
        backend.fail_next(Fault.RESET)
        ... backend.address, backend.running, backend.requests ...

As a process it prints its address on one line and serves until it is stopped. `POST /fake` changes it meanwhile, with
a JSON object of the fields of `control.FakeBehaviour`; `GET /fake` tells what it has done.

    python -m prorl_mq.testing.fake_backend --port 0 --latency-ms 5
    curl -d '{"latency_ms": 50, "fail_next": ["reset"]}' ADDRESS/fake
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from types import TracebackType
from typing import Self

from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer
from prorl_mq.testing.control import ABORT_ROUTES, control
from prorl_mq.testing.exchange import LoggedRequest, Running, failure, refused, sample_result
from prorl_mq.testing.experts import FakeExperts
from prorl_mq.testing.sampling import PrefixCache, ReplyFunction, cut_to_limit, pseudo_random
from prorl_mq.testing.streaming import Flow, events
from prorl_mq.testing.wire import (
    COMPLETIONS,
    PRORL_GENERATE,
    SGLANG_GENERATE,
    VLLM_GENERATE,
    FakeFault,
    GenerateCall,
    RequestError,
    error_answer,
    read_call,
    write_answer,
)

OPEN = frozenset({"/health", "/ready", "/metrics", "/fake"})  # without a key
DRIP_S = 0.05  # between two bytes of an answer that drips
ALL_ROUTES = frozenset({VLLM_GENERATE, SGLANG_GENERATE, COMPLETIONS, PRORL_GENERATE})


class FakeBackend:
    """One backend on loopback. Every public attribute may be changed while it runs."""

    aborts: list[str]  # ids as the abort routes received them
    calls: list[str]  # control routes that were posted to, in order
    loaded: list[str]  # directories of weights, in order

    def __init__(
        self,
        *,
        reply: ReplyFunction | None = None,
        model: str = "policy",
        latency_ms: float = 0.0,
        token_ms: float = 0.0,
        routes: Collection[str] = ALL_ROUTES,
        old_shape: bool = False,
        logprobs_mode: str | None = None,
        api_key: str | None = None,
        abort_routes: Collection[str] = ABORT_ROUTES,
        slots: int | None = None,
        context_tokens: int = 32768,
        block_tokens: int = 16,
        log_limit: int | None = None,
    ) -> None:
        self.reply = reply or pseudo_random()
        self.model, self.model_root = model, ""  # where it says that it was loaded from; empty: its name
        self.latency_ms = latency_ms  # of every request
        self.token_ms = token_ms  # of every sampled token, on top
        self.routes = set(routes)
        self.old_shape = old_shape  # log-probability entries as vLLM sent them up to 0.31
        self.logprobs_mode = logprobs_mode  # processed, scaled, raw; None: as the route has them by default
        self.api_key = api_key  # wanted by every route but health
        self.engine_version: str | None = None  # told where the engine tells it
        self.ids_in = "token_ids"  # of the completions route: logprobs, content or nowhere, as other servers have them
        self.streams = True
        self.flow = Flow(self.notify)  # where streams are cut or held
        self.experts: FakeExperts | None = None  # None: it is dense, or started without the flag
        self.adapters: dict[str, str] = {}  # LoRA adapters: name and directory
        self.abort_routes = set(abort_routes)
        self.load_ms = 0.0  # of new weights
        self.tells_version = True  # at /weight_info; answers tell it unless `old_shape`
        self.refused: dict[str, int] = {}  # control routes that answer with a status of their own
        self.context_tokens = context_tokens
        self.healthy, self.version = True, "default"
        self.cache = PrefixCache(block_tokens=block_tokens)
        self.fault: FakeFault | None = None  # of every request; `fail_next` comes first
        self.requests: deque[LoggedRequest] = deque(maxlen=log_limit)
        self.aborts, self.calls, self.loaded = [], [], []
        self.served = self.prompt_tokens = self.hit_tokens = self.waiting = self.preempted = 0
        self.server = HttpServer(self._handle)
        self._next_faults: deque[FakeFault] = deque()
        self._running: dict[int, Running] = {}
        self._waiters: list[tuple[Callable[[FakeBackend], bool], asyncio.Future[None]]] = []
        self._seats = None if slots is None else asyncio.Semaphore(slots)
        self.paused = self.frozen = False  # new requests wait; those under way stand still
        self._count = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """After `stop`, port 0 is the port it had."""
        await self.server.start(port)

    async def stop(self) -> None:
        """Drops every connection, as the death of the process would; the state stays for a later `start`."""
        await self.server.stop()

    @property
    def is_sglang(self) -> bool:
        """True if it speaks SGLang's protocol and no other; then its control routes are SGLang's, too."""
        return self.routes == {SGLANG_GENERATE}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    # -- what a test asks and sets ------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Generating requests under way."""
        return len(self._running)

    def states(self) -> list[str]:
        """State of each request so far, in order of arrival."""
        return [request.state for request in self.requests]

    def fail_next(self, *faults: FakeFault) -> None:
        """The next generating requests fail so, one each."""
        self._next_faults.extend(faults)

    async def wait_until(self, condition: "Callable[[FakeBackend], bool]") -> None:
        """Returns once the condition holds; it is looked at after every change of a request."""
        if not condition(self):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((condition, waiter))
            await waiter

    async def wait_running(self, count: int) -> None:
        """Returns once exactly so many requests are under way."""
        await self.wait_until(lambda backend: backend.running == count)

    def abort(self, request_ids: Collection[str]) -> None:
        """Requests under way answer now, with what is sampled by the clock."""
        for running in self._running.values():
            if running.log.call.request_id in request_ids:
                running.abort()

    def abort_prefix(self, prefix: str) -> None:
        """Requests whose id begins so answer now, as SGLang understands an abort."""
        self.abort(
            [each.log.call.request_id for each in self._running.values() if each.log.call.request_id.startswith(prefix)]
        )

    def load_adapter(self, name: str, directory: str) -> None:
        """A LoRA adapter that requests may name from now on."""
        self.adapters[name] = directory

    def unload_adapter(self, name: str) -> None:
        """Requests that name it are refused from now on."""
        self.adapters.pop(name, None)

    def abort_all(self, share: float | None = None) -> int:
        """Every running request answers now, with this share of its tokens (None: by the clock). Returns how many."""
        for running in self._running.values():
            running.abort(share)
        return len(self._running)

    def set_version(self, version: str, share: float | None = None) -> None:
        """New weights: requests under way record the change at this share of their tokens (None: by the clock)."""
        self.version = version
        for running in self._running.values():
            running.change_version(version, share)

    async def pause(self, mode: str = "keep") -> None:
        """New requests wait until `resume`. Those under way freeze (keep), are waited for (wait) or cut (abort)."""
        self.paused = True
        self.frozen = mode == "keep"
        if mode == "abort":
            self.abort_all()
        if mode == "wait":
            await self.wait_until(lambda backend: not any(each.begun for each in backend._running.values()))  # noqa: SLF001

    def resume(self) -> None:
        """Idempotent."""
        self.paused = self.frozen = False
        self.wake()

    def wake(self) -> None:
        """Requests that stand still look whether they may continue."""
        for running in self._running.values():
            running.wake.set()

    def forget_prefixes(self) -> bool:
        """Empties the prefix cache; refused while requests hold blocks."""
        if not self.running:
            self.cache.clear()
        return not self.running

    async def load(self, directory: str) -> None:
        """Takes its time; the version does not change by it."""
        await asyncio.sleep(self.load_ms / 1000)
        self.loaded.append(directory)

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        if (
            self.api_key
            and request.path not in OPEN
            and request.headers.get("authorization") != f"Bearer {self.api_key}"
        ):
            return error_answer(401, "Unauthorized")
        return await (self._generate(request) if self._route(request) in self.routes else control(self, request))

    def _route(self, request: HttpRequest) -> str:
        """SGLang and ProRL have one path; a server that speaks one of the two alone reads every body as its own."""
        if request.path != PRORL_GENERATE or SGLANG_GENERATE not in self.routes:
            return request.path
        return (
            SGLANG_GENERATE if PRORL_GENERATE not in self.routes or b'"input_ids"' in request.body else PRORL_GENERATE
        )

    async def _generate(self, request: HttpRequest) -> HttpResponse:
        number = self._count = self._count + 1
        try:
            call = read_call(self._route(request), request.body, request.headers.get("x-request-id"), f"fake-{number}")
        except RequestError as error:
            return error_answer(400, str(error))
        log = LoggedRequest(call=call, started=time.perf_counter())
        log.fault = self._next_faults.popleft() if self._next_faults else self.fault
        self.requests.append(log)
        running = self._running[number] = Running(log, self.version)
        self.notify()
        try:
            response = await self._answer(running)
        except asyncio.CancelledError:
            log.state = "gone"
            self._over(number)
            raise
        if response.events is not None:
            return response._replace(events=self._followed(number, response.events))
        self._over(number)
        return response

    async def _followed(self, number: int, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A stream, whose request is under way until it ends."""
        try:
            async for event in events:
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self._running[number].log.state = "gone"
            raise
        finally:
            self._over(number)

    def _over(self, number: int) -> None:
        self._running.pop(number).log.ended = time.perf_counter()
        self.notify()

    async def _answer(self, running: Running) -> HttpResponse:
        log = running.log
        if (refusal := refused(log.call, {self.model, *self.adapters}, self.context_tokens)) is not None:
            log.state = "failed"
            return refusal
        reply = cut_to_limit(self.reply(log.call.prompt_ids, log.call.params), self._limit(log.call))
        streamed = self.streams and bool(log.call.raw.get("stream")) and log.call.route != PRORL_GENERATE
        share = await self._in_turn(running, 0 if streamed else len(reply.ids))
        if log.fault is not None and (response := failure(log.fault)) is not None:
            log.state = "failed"
            return response
        if streamed:
            return HttpResponse(events=events(self, running, reply))
        hits = self.cache.cached_tokens(log.call.prompt_ids, log.call.cache_salt)
        self.served += 1
        self.prompt_tokens += len(log.call.prompt_ids)
        self.hit_tokens += hits
        mode = self.logprobs_mode or ("scaled" if log.call.route == SGLANG_GENERATE else "processed")
        sampled = sample_result(running, reply, share, cached_tokens=hits, logprobs_mode=mode)
        self.cache.store([*log.call.prompt_ids, *sampled.ids], log.call.cache_salt)
        log.state = "failed" if log.fault is not None else ("aborted" if share < 1.0 else "done")
        body = write_answer(
            log.call, sampled, old_shape=self.old_shape, version=self.version, ids_in=self.ids_in, fault=log.fault,
            experts=self.experts,
        )  # fmt: skip
        drip_s = DRIP_S if log.fault is FakeFault.DRIP else 0.0
        return HttpResponse(body=body, cut_after=len(body) // 2 if log.fault is FakeFault.CUT else None, drip_s=drip_s)

    def _limit(self, call: GenerateCall) -> int:
        room = self.context_tokens - len(call.prompt_ids)
        return room if call.params.max_tokens is None else min(room, call.params.max_tokens)

    async def _in_turn(self, running: Running, tokens: int) -> float:
        """With a limit of slots, a request waits for one before its time begins to pass."""
        if running.log.fault is FakeFault.HANG:
            await asyncio.Event().wait()
        if self._seats is None:
            return await self._spend(running, tokens)
        self.waiting += 1
        try:
            await self._seats.acquire()
        finally:
            self.waiting -= 1
        try:
            return await self._spend(running, tokens)
        finally:
            self._seats.release()

    async def _spend(self, running: Running, tokens: int) -> float:
        """Lets the request's time pass. Returns the share of its tokens that were sampled: below 1 when aborted."""
        while self.paused and not running.aborted:
            running.wake.clear()
            await running.wake.wait()
        running.begun = True
        self.notify()
        seconds = (self.latency_ms + self.token_ms * tokens) / 1000
        share = await running.spend(seconds) if seconds > 0 or running.aborted else 1.0
        while self.frozen and not running.aborted:
            running.wake.clear()
            await running.wake.wait()
        return share

    def notify(self) -> None:
        """Looks at what is waited for."""
        if not self._waiters:
            return
        waiting = []
        for condition, waiter in self._waiters:
            if waiter.done():
                continue
            if condition(self):
                waiter.set_result(None)
            else:
                waiting.append((condition, waiter))
        self._waiters = waiting


if __name__ == "__main__":
    from prorl_mq.testing.serve import main

    main()
