"""The policy as one attempt of a job sees it: sticky to a backend, moved when that one fails.

Token ids are the record, so a move loses nothing but the old backend's prefix cache: the next backend gets the same
prompt. A turn that a backend aborts (weights are being changed) continues from its partial ids, under a new request.
A call is never sent twice under one id, and of several tries only one answer is ever used. RUN's clock stands while
a backend is waited for, and a call that failed or was given up has taken none of it.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from prorl_mq.schema.turns import CompletionSpan
from workers.inference.assignment import Assigner, Endpoint
from workers.inference.protocol import Completion, InferenceError, NoBackend
from workers.inference.protocols.spans import first_and_last
from workers.inference.request import BackendClient, GenerateRequest
from workers.inference.run_clock import Patience, RunClock
from workers.inference.transport import Stale
from workers.inference.waits import Waits
from workers.inference.watching import CallWatch

PROMPT_TOKENS = 64  # of a prompt are read in the time of one sampled token, at least
MAX_RESUMES = 32  # of one turn; weights do not change more often within it


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
        self.resumes = 0  # of turns that a backend aborted
        self._job_id = job_id
        self._token = token
        self._assigner = assigner
        self._clients = clients
        self._clock = clock or RunClock()
        self._watch = watch or CallWatch(Waits())
        self._max_tries = max_tries
        self._backend: Endpoint | None = None
        self._calls = 0

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
    ) -> Completion:
        """Samples one turn. Raises `InferenceError` when no try succeeded; cancelling aborts the request.

        Raises `TimeoutError` when the policy's own time is over and its backend was seen to work.
        """
        self.turns += 1
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
        )
        with self._clock.held():
            patience = Patience(self._clock)
            completion = await self._with_failover(request, patience)
            for resume in range(1, MAX_RESUMES + 1):
                if completion.finish_reason != "abort" or len(completion.ids) >= max_tokens:
                    break
                self.resumes += 1
                rest = await self._with_failover(_rest(request, completion, resume), patience)
                completion = _join(completion, rest)
        return completion

    async def _with_failover(self, request: GenerateRequest, patience: Patience) -> Completion:
        """Tries backends until one answers; each is tried once before any is tried again."""
        failed: set[str] = set()
        error: InferenceError | None = None
        clock = asyncio.get_running_loop().time
        for _ in range(self._max_tries):
            async with patience.waiting(f"a living backend{f', after: {error}' if error else ''}"):
                backend = await self._take(failed, moving=error is not None)
            started = clock()
            try:
                completion = await self._watched(backend, request)
            except InferenceError as failure:
                if not failure.retryable:
                    raise
                error = failure
                failed.add(backend.address)
                self._backend = None
                await self._assigner.report_failure(backend.address, failure)
                patience.lost(clock() - started, failure)
            else:
                self._watch.tokens.heard(backend.address)
                await self._assigner.report_success(backend.address, completion)
                return completion
        assert error is not None
        error.add_note(f"job {self._job_id}: gave up after {self._max_tries} tries on {', '.join(sorted(failed))}")
        raise error

    async def _take(self, failed: set[str], *, moving: bool) -> Endpoint:
        """The backend of this call: the one it sticks to once that may be called, else another."""
        held_too_long: set[str] = set()
        while True:
            if self._backend is None:
                self._backend = await self._assign(failed | held_too_long)
                self.moves += moving or bool(held_too_long)
            ready = await self._assigner.ready(self._backend)
            if ready is not None:
                return ready
            held_too_long.add(self._backend.address)
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
        one_token = msgspec.structs.replace(request, prompt_ids=request.prompt_ids[:1], max_tokens=1, seed=0)

        async def probe() -> Completion:
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


def _rest(request: GenerateRequest, done: Completion, resume: int) -> GenerateRequest:
    """The rest of a request after `done`. The seed moves on: the same one would draw the same numbers again."""
    return msgspec.structs.replace(
        request,
        prompt_ids=[*request.prompt_ids, *done.ids],
        max_tokens=request.max_tokens - len(done.ids),
        seed=None if request.seed is None else (request.seed + resume * 0x9E3779B1) & 0x7FFFFFFF,
    )


def _join(first: Completion, then: Completion) -> Completion:
    """Two parts of one turn. The counts of the prompt are the first's; the spans say which backend sampled what."""
    moved = len(first.ids)
    spans = [*first.spans, *(_shifted(span, moved) for span in then.spans)]
    return Completion(
        ids=[*first.ids, *then.ids],
        logprobs=[*first.logprobs, *then.logprobs],
        finish_reason=then.finish_reason,
        stop_token=then.stop_token,
        backend=then.backend,
        version=first_and_last(spans),
        spans=spans,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        seconds=first.seconds + then.seconds,
    )


def _shifted(span: CompletionSpan, by: int) -> CompletionSpan:
    return msgspec.structs.replace(span, start=span.start + by, end=span.end + by)
