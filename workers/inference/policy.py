"""The policy as one attempt of a job sees it: sticky to a backend, moved when that one fails.

Token ids are the record, so a move loses nothing but the old backend's prefix cache: the next backend gets the same
prompt. A turn that a backend aborts (weights are being changed) continues from its partial ids, under a new request; so
does one whose backend is lost, where its tokens are streamed (`Arrived`).
A call is never sent twice under one id, and of several tries only one answer is ever used. RUN's clock stands while
a backend is waited for, and a call that failed or was given up has taken none of it.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from prorl_mq.rules.routing.room import expected
from workers.inference.arrived import Arrived, CallTokens, finished, joined
from workers.inference.assignment import Assigner, Endpoint, TurnUnderWay
from workers.inference.logprobs import exact
from workers.inference.pictures import Picture
from workers.inference.protocol import Completion, ContextFull, InferenceError, MalformedAnswer, NoBackend
from workers.inference.request import BackendClient, GenerateRequest
from workers.inference.routes import RoutesAsked, behind
from workers.inference.run_clock import Patience, RunClock
from workers.inference.transport import Stale
from workers.inference.waits import Waits
from workers.inference.watching import CallWatch

PROMPT_TOKENS = 64  # of a prompt are read in the time of one sampled token, at least
MAX_RESUMES = 32  # of one turn without a new token; weights do not change more often within it
UNREPEATABLE: Final = "its seed decides what is sampled, and has no place within an answer to continue from"


class StickyPolicy:
    """Implements `Policy` for one attempt. `token` fences it: with it, request ids are unique across attempts."""

    def __init__(
        self,
        *,
        job_id: str,
        token: str,
        assigner: Assigner,
        clients: BackendClient,
        clock: RunClock | None = None,
        watch: CallWatch | None = None,
        max_tries: int = 4,
    ) -> None:
        self.turns = 0
        self.moves = 0  # to another backend after a failure
        self.resumes = 0  # of turns that a backend aborted, or was lost with
        self._job_id = job_id
        self._token = token
        self._assigner = assigner
        self._clients = clients
        self._clock = clock or RunClock()
        self._watch = watch or CallWatch(Waits())
        self._max_tries = max_tries
        self._backend: Endpoint | None = None
        self._calls = self._answers = self._sampled = 0  # requests, answers and their tokens
        self._opening = 0  # tokens of the first prompt

    @property
    def backend(self) -> Endpoint | None:
        """The backend this attempt sticks to; None before the first call."""
        return self._backend

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = -1,
        seed: int | None = None,
        stop_token_ids: Sequence[int] = (),
        arrived: Arrived | None = None,
        routes: RoutesAsked | None = None,
        pictures: Sequence[Picture] = (),
    ) -> Completion:
        """Samples one turn. Raises `InferenceError` when no try succeeded; cancelling aborts the request.

        With `arrived` the turn continues from what that has, and puts there what it samples. Raises `TimeoutError` when
        the policy's own time is over and its backend was seen to work.
        """
        self.turns += 1
        self._opening = self._opening or len(prompt_ids)
        request = GenerateRequest(
            request_id="",
            session_id=self._job_id,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            stop_token_ids=stop_token_ids,
            routes=routes,
            pictures=pictures,
        )
        if arrived is not None and request.draws:
            arrived.unable(UNREPEATABLE)
            arrived = None
        with self._clock.held():
            return await self._whole(request, arrived, Patience(self._clock))

    async def _whole(self, request: GenerateRequest, arrived: Arrived | None, patience: Patience) -> Completion:
        """A turn, in as many calls as it takes."""
        done = arrived.kept if arrived is not None else None
        failed: set[str] = set()
        resumes = idle = 0
        while True:
            if done is not None:
                done = finished(done, request.stop_token_ids, request.max_tokens)
                if done.finish_reason != "abort" or idle > MAX_RESUMES:
                    return done
                self.resumes += 1
                resumes += 1
            try:
                part = await self._with_failover(_rest(request, done, resumes), patience, arrived, failed)
            except ContextFull:
                if done is None or not done.ids:
                    raise
                return msgspec.structs.replace(done, finish_reason="length")  # as the uncut call would have ended
            idle = 0 if part.ids else idle + 1
            done = part if done is None else joined(done, part)
            if arrived is not None:
                arrived.kept, arrived.call = done, None

    async def _with_failover(
        self, request: GenerateRequest, patience: Patience, arrived: Arrived | None, failed: set[str]
    ) -> Completion:
        """Tries backends until one answers, or was lost behind some tokens; each is tried once before any is tried
        again.
        """
        error: InferenceError | None = None
        clock = asyncio.get_running_loop().time
        for _ in range(self._max_tries):
            with self._counted(request) as turn:
                async with patience.waiting(f"a living backend{f', after: {error}' if error else ''}"):
                    backend = await self._take(turn, failed, patience, moving=error is not None or bool(failed))
                    tokens = await self._tokens(backend, request, arrived)
                started = clock()
                try:
                    completion = await self._watched(backend, msgspec.structs.replace(request, arrived=tokens))
                except InferenceError as failure:
                    if not failure.retryable:
                        raise
                    error = failure
                    failed.add(backend.address)
                    self._backend = None
                    await self._assigner.report_failure(backend.address, failure)
                    part = await _part(arrived, failure)
                    patience.lost(clock() - started - (part.seconds if part is not None else 0.0), failure)
                    if part is not None:
                        return part
                    if arrived is not None and tokens is not None and tokens.unable:
                        arrived.unable(f"backend {backend.address} {tokens.unable}")
                else:
                    failed.clear()
                    turn.context += len(completion.ids)
                    if arrived is not None and tokens is not None and tokens.unable:
                        arrived.unable(f"backend {backend.address} {tokens.unable}")
                    self._answers, self._sampled = self._answers + 1, self._sampled + len(completion.ids)
                    self._watch.tokens.heard(backend.address)
                    await self._assigner.report_success(backend.address, completion)
                    return completion
        assert error is not None
        error.add_note(f"job {self._job_id}: gave up after {self._max_tries} tries on {', '.join(sorted(failed))}")
        raise error

    @contextmanager
    def _counted(self, request: GenerateRequest) -> Iterator[TurnUnderWay]:
        """One try, whose end the assigner is told however it ends."""
        prompt, answer = request.prompt_ids, expected(self._answers, self._sampled, request.max_tokens)
        turn = TurnUnderWay(len(prompt), answer, prompt, 0 if request.pictures else self._opening)
        try:
            yield turn
        finally:
            self._assigner.ended(turn)

    async def _tokens(self, backend: Endpoint, request: GenerateRequest, arrived: Arrived | None) -> CallTokens | None:
        """The place for the tokens of a call, as they come."""
        if arrived is None:
            return None
        certain = partial(self._assigner.version, backend.address)
        arrived.call = CallTokens(
            backend.address,
            most=request.max_tokens,
            version=backend.adapter_version,
            tells=backend.adapter is None,  # what a stream tells is the base model's version
            raw=not exact(backend.logprobs, request),
            before=await certain(),
            certain=certain,
        )
        return arrived.call

    async def _take(self, turn: TurnUnderWay, failed: set[str], patience: Patience, *, moving: bool) -> Endpoint:
        """The backend of this call: the one it sticks to once that may be called, else another."""
        held_too_long: set[str] = set()
        while True:
            if self._backend is None:
                self._backend = await self._assign(failed | held_too_long)
                self.moves += moving or bool(held_too_long)
            backend = self._backend = await self._assigner.room(self._backend, turn, patience.park_s)
            ready = await self._assigner.ready(backend)
            if ready is not None:
                return ready
            held_too_long.add(backend.address)
            self._backend = None

    async def _assign(self, failed: set[str]) -> Endpoint:
        """A backend that did not fail yet in this call, or, with none left, any that the pool still calls healthy."""
        try:
            return await self._assigner.assign(self._job_id, self._token, exclude=frozenset(failed))
        except NoBackend:
            if not failed:
                raise
            return await self._assigner.assign(self._job_id, self._token, exclude=frozenset())

    async def _watched(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """One call. Raises `Silent` if nothing comes of it, `TimeoutError` if the policy's time is over before it."""
        call = asyncio.ensure_future(self._call(backend, request))

        async def probe() -> Completion:
            one_token = msgspec.structs.replace(
                request, prompt_ids=request.prompt_ids[:1], max_tokens=1, seed=0, arrived=None, routes=None, pictures=()
            )
            return await self._clients.generate(backend, self._new(one_token))

        tokens = request.max_tokens + len(request.prompt_ids) / PROMPT_TOKENS
        return await self._watch.answer_or_silence(call, probe, self._clock, backend.address, tokens)

    async def _call(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        """One request, under an id of its own. A kept connection that drops unanswered is no failure of the backend."""
        try:
            return await self._clients.generate(backend, self._new(request))
        except Stale:
            return await self._clients.generate(backend, self._new(request))

    def _new(self, request: GenerateRequest) -> GenerateRequest:
        self._calls += 1
        request_id = f"{self._job_id}-{self._token}-t{self.turns}-c{self._calls}"
        return msgspec.structs.replace(request, request_id=request_id)


async def _part(arrived: Arrived | None, failure: InferenceError) -> Completion | None:
    """The tokens that a failed call leaves; none where they contradicted one another."""
    if arrived is None or arrived.call is None:
        return None
    if isinstance(failure, MalformedAnswer):
        arrived.call = None
        return None
    return await arrived.call.part()  # they stay until they are kept: meanwhile they may be logged


def _rest(request: GenerateRequest, done: Completion | None, resume: int) -> GenerateRequest:
    """The rest of a request after `done`. The seed moves on: the same one would draw the same numbers again."""
    if done is None:
        return request
    return msgspec.structs.replace(
        request,
        prompt_ids=[*request.prompt_ids, *done.ids],
        max_tokens=request.max_tokens - len(done.ids),
        routes=behind(request.routes, done.routes),
        seed=None if request.seed is None else (request.seed + resume * 0x9E3779B1) & 0x7FFFFFFF,
    )
