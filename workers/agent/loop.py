"""The agent loop: prompt, completion, tool calls, again, until an answer or a limit.

Our own failures (`InferenceError`, and `SandboxLost` with what was sampled) are exceptions, never shown to the model;
what the model does wrong is told to it as a tool's result and counted. Cancelling the task stops what runs at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import ToolCall, Turn
from prorl_mq.schema.turns import CallResult, TurnResults
from sandbox.errors import SandboxError
from sandbox.protocol import Sandbox
from workers import metrics
from workers.agent.alike import difference
from workers.agent.calls import Call, limited
from workers.agent.compaction import Compact, History
from workers.agent.hermes import Message
from workers.agent.journal import Journal, LogDiffers, PastTurn, Since
from workers.agent.parser import Parsed
from workers.agent.pictures.results import ToolPictures
from workers.agent.renderer import Renderer
from workers.agent.result import MAX_REFUSED_TURNS, AgentResult, LoopEnd, left_of, room_of
from workers.agent.seeds import turn_seed
from workers.agent.tokens import TokenRecord
from workers.agent.tools import Refused, Resumes, Tool, ToolAnswer, ToolContext, beyond, call_tool, refusal
from workers.handler import SandboxLost, TurnLog
from workers.inference.pictures import shown, without
from workers.inference.protocol import Completion, ContextFull, InferenceError, Policy
from workers.inference.routes import asked, whole
from workers.inference.run_clock import LONGEST_STALL_S, Patience, RunClock, Stalled, clock_until

Reply = Callable[[str], Awaitable[str | None]]  # what an environment says to a turn that called no tool; None: the end
_MARGIN_S = 2.0  # kept of RUN's budget to hand over what there is


async def run_agent(
    *,
    policy: Policy,
    renderer: Renderer,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    sandbox: Sandbox | None,
    sampling: Sampling,
    sample: str,
    deadline: RunClock | float,
    compact: Compact | None = None,
    tell_budget: bool = False,
    reply: Reply | None = None,
    log: TurnLog | None = None,
    runs_calls: bool = True,
) -> AgentResult:
    """One rollout. `sample` names it, so that its seeds are its own. `deadline` is RUN's clock, or event-loop time:
    past it the rollout is truncated and keeps its finished turns. `compact` may shorten the history. With
    `tell_budget` the model reads behind every answer what is left. Without `reply` a turn with no call is the last one;
    without `runs_calls` any is: its calls are the answer.

    With `log` it continues where an attempt before has ended: `Tool.resumes` says what becomes of that one's calls, and
    `reply` is asked again. Raises `LogDiffers` where that gives another rollout.
    """
    kept = log if all(tool.resumes is not Resumes.NEVER for tool in tools) else None
    agent = _Agent(policy, renderer, tools, sandbox, sampling, sample, clock_until(deadline), Journal(kept))
    opening, shared = await asyncio.to_thread(renderer.opening, messages, tools), agent.journal.inherited
    agent.record = TokenRecord(opening.ids, messages, inherited=shared, pictures=opening.pictures)
    agent.seen = ToolPictures(renderer, agent.journal, kept, tools, opening)
    agent.history, agent.compact, agent.reply = list(messages), compact, reply
    agent.tell_budget, agent.runs_calls = tell_budget, runs_calls
    try:
        while (stop := await agent.turn()) is None:
            continue
        agent.journal.ended()
    except SandboxError as error:
        sampled = (await agent.result(LoopEnd(reason="sandbox"))).trajectory
        raise SandboxLost(f"{type(error).__name__}: {error}", sampled) from error
    return await agent.result(stop)


class _Agent:
    """The state of one rollout between turns."""

    record: TokenRecord
    seen: ToolPictures
    history: list[Message]  # for `compact` to read; the prompts are made of ids
    compact: Compact | None
    tell_budget: bool
    reply: Reply | None
    runs_calls: bool

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        tools: Sequence[Tool],
        sandbox: Sandbox | None,
        sampling: Sampling,
        sample: str,
        clock: RunClock,
        journal: Journal,
    ) -> None:
        self.policy, self.renderer, self.tools, self.sandbox = policy, renderer, tools, sandbox
        self.sampling, self.sample, self.clock, self.journal = sampling, sample, clock, journal
        clock.charge(journal.used_s)
        self.patience = Patience(clock)  # for a sandbox that is made as it was
        self.keep_s = min(_MARGIN_S, clock.left_s / 10)
        self.started = asyncio.get_running_loop().time() - journal.elapsed_s
        self.answer = self.replied = ""
        self.exchanged: list[Message] = []
        self.calls = self.refused = self.refused_turns = 0

    async def turn(self) -> LoopEnd | None:
        """One completion, its tool calls and the prompt that follows; a `LoopEnd` ends the rollout."""
        past = await self.journal.turn()
        begun = past or self.journal.begun()
        try:
            async with self._limit(past):
                compacted = await self._shorten(begun)
                room, limit = room_of(self.sampling, self.record)
                if room <= 0:
                    return limit
                self.journal.prompted(self.record, begun)
                started = self._elapsed() if begun is None else begun.started_s
                completion = past.completion if past else await self._generate(room, begun, compacted, started)
                wanted = {**asked(self.sampling, self.record.routed), **shown(self.record.pictures)}
                completion = await whole(self.policy, self.record.context, completion, wanted)
        except TimeoutError:
            return LoopEnd(reason="time", truncated_by="time")
        except ContextFull:
            return LoopEnd(reason="context", truncated_by="context")
        place = len(self.record.context)
        self.record.sample(completion)
        parsed = self.renderer.parse(completion.ids, self.tools)
        if past is None:
            follows = bool(parsed.calls and self.tools and self.runs_calls) or self.reply is not None
            used_s = self.clock.used_s
            await self.journal.sampled(completion, compacted, started_s=started, used_s=used_s, follows=follows)
        self.answer, self.replied = parsed.text or self.answer, ""
        await self.journal.acts(past, beyond(self.tools, parsed.calls))
        done: list[ToolCall] = []
        try:
            stop = await self._act(parsed, completion, done, limit, room, past.results if past else None)
        finally:
            self.record.end_turn(self._turn_record(place, started, completion, parsed, done))
        if stop is None:
            if past is None or past.results is None:
                logged = TurnResults(self.seen.logged(done), self.replied or None, self.clock.used_s, self._elapsed())
                await self.journal.answered(logged, self.record.turns - 1)
            left = left_of(self.sampling, self.record) if self.tell_budget else ""
            results = self.seen.messages(done, self.replied, left)
            said = Message(role="assistant", content=self.renderer.said(completion.ids))
            self.exchanged += (said, *results)
            self.history += (said, *results)
            behind = (completion.ids, results, self.tools, len(self.record.context))
            added = await asyncio.to_thread(self.renderer.following, *behind)
            self.record.insert(added.ids, added.pictures)
        return stop

    def _limit(self, past: object) -> AbstractAsyncContextManager[object]:
        """RUN's time, for what no attempt before has done: the rest of it is counted."""
        return self.clock.limit(self.keep_s) if past is None else nullcontext()

    async def _shorten(self, past: PastTurn | None) -> Sequence[Message] | None:
        """Continues from other messages if the task family gives some; which."""
        if self.compact is None or not self.record.turns:
            return None
        history = History(
            messages=tuple(self.history),
            context_tokens=len(self.record.context),
            max_context_tokens=self.sampling.max_context_tokens,
            turns=self.record.turns,
        )
        messages = await self.compact(history) if past is None else past.compacted
        if messages is not None:
            opening = await asyncio.to_thread(self.renderer.opening, messages, self.tools)
            self.record.compact(opening.ids, messages, opening.pictures)
            self.history = list(messages)
        return messages

    def _elapsed(self) -> float:
        """Seconds since the start of the rollout, without those between its attempts."""
        return asyncio.get_running_loop().time() - self.started

    async def result(self, stop: LoopEnd) -> AgentResult:
        """The rollout as it ended."""
        trajectory = await asyncio.to_thread(
            self.record.trajectory,
            stop_reason=stop.reason,
            truncated_by=stop.truncated_by,
            sampling=self.sampling,
            tools=[tool.schema() for tool in self.tools],
            show=self.renderer.text,
        )
        return AgentResult(
            trajectory=trajectory,
            answer=self.answer,
            stop=stop,
            tool_calls=self.calls,
            refused_calls=self.refused,
            sampled_tokens=self.record.sampled_tokens,
            forks=self.record.forks,
            exchanged=self.exchanged,
        )

    async def _generate(
        self, room: int, begun: PastTurn | None, compacted: Sequence[Message] | None, started: float
    ) -> Completion:
        """Samples a turn, from where an attempt before had `begun` it where the batch asks for that."""
        sampling, pictures = self.sampling, self.record.pictures
        unwanted = await self.seen.unwanted(pictures)
        generate = partial(
            self.policy.generate,
            self.record.context,
            max_tokens=room,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=turn_seed(sampling.seed, self.sample, self.record.turns),
            stop_token_ids=(*self.renderer.stop_ids, *unwanted),
            **asked(self.sampling, self.record.routed),
            **shown(pictures),
        )
        if unwanted or not sampling.continue_generation:
            return without(await generate(), unwanted, len(self.record.context))
        since = Since(self.record.turns, started, compacted, lambda: self.clock.used_s)
        async with self.journal.arriving(begun, since) as arrived:
            return await generate(arrived=arrived)

    async def _act(
        self,
        parsed: Parsed,
        completion: Completion,
        done: list[ToolCall],
        limit: LoopEnd,
        room: int,
        past: TurnResults | None,
    ) -> LoopEnd | None:
        """Runs the calls of a turn into `done`; a `LoopEnd` when there were none, or one was final. `past`: what they
        gave an attempt before.
        """
        calls = limited(parsed.calls) if self.tools and self.runs_calls else ()
        if past is not None and len(past.calls) != len(calls):
            logged = f"turn {self.record.turns} was logged with {len(past.calls)} calls"
            raise LogDiffers(f"{logged}; now it has {len(calls)}")
        if not calls:
            if completion.finish_reason == "stop":
                return await self._answered(completion, past)
            if completion.finish_reason == "abort":
                raise InferenceError(f"backend {completion.backend!r} aborted a turn that nobody resumed")
            cut_early = len(completion.ids) < room  # the backend's own context was shorter
            return LoopEnd(reason="context", truncated_by="context") if cut_early else limit
        refused_before = self.refused
        for place, call in enumerate(calls):
            try:
                async with self._limit(past):
                    final = await self._call(call, done, past.calls[place] if past else None)
            except TimeoutError:
                return LoopEnd(reason="time", truncated_by="time")
            if final:
                return LoopEnd(reason="finish")
        all_refused = self.refused - refused_before == len(done)
        self.refused_turns = self.refused_turns + 1 if all_refused else 0
        return LoopEnd(reason="protocol") if self.refused_turns >= MAX_REFUSED_TURNS else None

    async def _answered(self, completion: Completion, past: TurnResults | None) -> LoopEnd | None:
        """A turn that called no tool is the end, unless an environment has something to say to it."""
        try:
            async with self._limit(past):
                said = await self.reply(self.renderer.said(completion.ids)) if self.reply else None
        except TimeoutError:
            return LoopEnd(reason="time", truncated_by="time")
        if past is not None and past.reply != said:
            raise LogDiffers(f"the environment answers turn {self.record.turns} otherwise than the log tells")
        self.replied = said or ""
        return LoopEnd(reason="answer") if said is None else None

    async def _call(self, call: Call, done: list[ToolCall], past: CallResult | None) -> bool:
        """Runs one call, unless it has run before; true if it was final."""
        final, result = False, past
        if result is None:
            started = self._elapsed()
            answer = await self._answer(call, len(done), max(0.1, self.clock.left_s))
            final, seconds = answer.final, self._elapsed() - started
            image = await self.seen.keep(len(done), answer.image)
            result = CallResult(answer.text, answer.ok, answer.refused is not None, seconds, image)
            metrics.tool_calls.labels(answer.refused or ("ok" if answer.ok else "failed")).inc()
        else:
            await self._again(call, len(done), result)
            await self.seen.restore(len(done), result)
        self.refused += result.refused
        self.calls += not result.refused
        done.append(ToolCall(
            name=call.name, arguments=call.told[1], result=result.text, ok=result.ok, seconds=result.seconds,
            refused=result.refused,
        ))  # fmt: skip
        if final:
            self.answer = result.text
        return final

    async def _again(self, call: Call, place: int, past: CallResult) -> None:
        """Makes a logged call again where what it acted on is lost, in no time of the policy's. Raises `LogDiffers`."""
        resumes = next((tool.resumes for tool in self.tools if tool.name == call.name), None)
        rebuilds = self.journal.rebuilds(self.record.turns) and not past.refused
        if resumes is not Resumes.AGAIN and not rebuilds:
            return
        where = f"{call.name} in turn {self.record.turns}"
        if resumes is Resumes.HERE:
            raise LogDiffers(f"{where} cannot be called again in a new sandbox: it reaches beyond it")
        try:
            with self.clock.held():
                async with self.patience.waiting("calls that are made again"):
                    answer = await self._answer(call, place, LONGEST_STALL_S)
        except Stalled as error:
            raise LogDiffers(f"{where} was not made again in time: {error}") from error
        again = CallResult(answer.text, answer.ok, answer.refused is not None, past.seconds)
        same = self.journal.alike(past, again, call) if rebuilds and resumes is Resumes.KEPT else again == past
        if answer.final or not same:
            raise LogDiffers(f"{where} answers otherwise than the log tells: {difference(past, again)}")

    async def _answer(self, call: Call, place: int, within_s: float) -> ToolAnswer:
        if call.error is not None:
            return refusal(Refused.UNREADABLE, call.error)
        box = self.sandbox
        if box is not None and self.journal.keeps:
            box = box.named(f"{self.record.turns}.{place}")
        timeout_s = min(self.sampling.tool_timeout_ms / 1000, within_s)
        context = ToolContext(sandbox=box, timeout_s=timeout_s, admit=self.seen.admit)
        return await call_tool(self.tools, call.name, call.arguments, context)

    def _turn_record(
        self, prompt_tokens: int, started: float, completion: Completion, parsed: Parsed, done: Sequence[ToolCall]
    ) -> Turn:
        return Turn(
            segment=self.record.segment,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(completion.ids),
            cached_tokens=completion.cached_tokens,
            finish_reason=completion.finish_reason,
            stop_token=completion.stop_token,
            started_seconds=started,
            llm_seconds=completion.seconds,
            text=self.renderer.text(completion.ids),
            tool_calls=done,
            client_calls=[] if self.runs_calls else [each.told for each in parsed.calls],
            reply="" if done else self.replied,
            content=parsed.text,
            reasoning=parsed.reasoning,
        )
