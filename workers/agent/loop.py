"""The agent loop: prompt, completion, tool calls, again, until an answer or a limit.

Our own failures (`InferenceError`, and `SandboxLost` with what was sampled) are exceptions, never shown to the model;
what the model does wrong is told to it as a tool's result and counted. Cancelling the task stops what runs at once.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import ToolCall, Trajectory, Turn
from sandbox.errors import SandboxError
from sandbox.protocol import Sandbox
from workers import metrics
from workers.agent.calls import Call, bad
from workers.agent.compaction import Compact, History
from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.renderer import Renderer
from workers.agent.seeds import turn_seed
from workers.agent.tokens import TokenRecord
from workers.agent.tools import Refused, Tool, ToolAnswer, ToolContext, call_tool, refusal
from workers.handler import SandboxLost
from workers.inference.protocol import Completion, ContextFull, InferenceError, Policy
from workers.inference.run_clock import RunClock, clock_until

MAX_REFUSED_TURNS = 4  # in a row: then the policy has broken the protocol
MAX_CALLS_PER_TURN = 16
Reply = Callable[[str], Awaitable[str | None]]  # what an environment says to a turn that called no tool; None: the end
_MARGIN_S = 2.0  # kept of RUN's budget to hand over what there is


class LoopEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rollout ended; `truncated_by` names the limit, if it was one."""

    reason: str  # finish, answer, max_turns, max_tokens, context, time, protocol, sandbox
    truncated_by: str | None = None


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished rollout. `answer` is the message of `finish`, or else the last text that the model wrote."""

    trajectory: Trajectory
    answer: str
    stop: LoopEnd
    tool_calls: int
    refused_calls: int  # bad JSON, unknown tool, wrong arguments
    sampled_tokens: int
    forks: int
    exchanged: Sequence[Message] = ()  # texts and tools' results of all turns but the last, for scorers that read them

    @property
    def agent_error(self) -> str | None:
        """The policy's break of the protocol, if there was one."""
        if self.stop.reason != "protocol":
            return None
        return f"no usable tool call in {MAX_REFUSED_TURNS} turns in a row; {self.refused_calls} calls were refused"


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
) -> AgentResult:
    """One rollout. `sample` names it, so that its seeds are its own. `deadline` is RUN's clock, or event-loop time.

    Past the deadline the rollout is truncated and keeps its finished turns. `compact` may shorten the history. With
    `tell_budget` the model reads behind every answer what is left. Without `reply` a turn with no call is the last.
    """
    agent = _Agent(policy, renderer, tools, sandbox, sampling, sample, clock_until(deadline))
    prompt = await asyncio.to_thread(renderer.prompt, messages, tools)
    agent.record = TokenRecord(prompt, end_of_turn=renderer.end_of_turn, closing=renderer.closing_ids)
    agent.history, agent.compact, agent.tell_budget, agent.reply = list(messages), compact, tell_budget, reply
    stop = None
    try:
        while stop is None:
            stop = await agent.turn()
    except SandboxError as error:
        sampled = (await agent.result(LoopEnd(reason="sandbox"))).trajectory
        raise SandboxLost(f"{type(error).__name__}: {error}", sampled) from error
    return await agent.result(stop)


class _Agent:
    """The state of one rollout between turns."""

    record: TokenRecord
    history: list[Message]  # for `compact` to read; the prompts are made of ids
    compact: Compact | None
    tell_budget: bool
    reply: Reply | None

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        tools: Sequence[Tool],
        sandbox: Sandbox | None,
        sampling: Sampling,
        sample: str,
        clock: RunClock,
    ) -> None:
        self.policy, self.renderer, self.tools, self.sandbox = policy, renderer, tools, sandbox
        self.sampling, self.sample, self.clock = sampling, sample, clock
        self.keep_s = min(_MARGIN_S, clock.left_s / 10)
        self.started = asyncio.get_running_loop().time()
        self.answer = self.replied = ""
        self.exchanged: list[Message] = []
        self.calls = self.refused = self.refused_turns = 0

    async def turn(self) -> LoopEnd | None:
        """One completion, its tool calls and the prompt that follows; a `LoopEnd` ends the rollout."""
        try:
            async with self.clock.limit(self.keep_s):
                await self._shorten()
                room, limit = self._room()
                if room <= 0:
                    return limit
                started = asyncio.get_running_loop().time() - self.started
                completion = await self._generate(room)
        except TimeoutError:
            return LoopEnd(reason="time", truncated_by="time")
        except ContextFull:
            return LoopEnd(reason="context", truncated_by="context")
        place = len(self.record.context)
        self.record.sample(completion)
        parsed = self.renderer.parse(completion.ids)
        self.answer, self.replied = parsed.text or self.answer, ""
        done: list[ToolCall] = []
        try:
            stop = await self._act(parsed, completion, done, limit, room)
        finally:
            self.record.end_turn(self._turn_record(place, started, completion, done))
        if stop is None:
            results = [Message(role="tool", content=call.result) for call in done]
            results = results or [Message(role="user", content=self.replied)]
            if self.tell_budget:
                results[-1] = Message(role=results[-1].role, content=f"{results[-1].content}\n{self._left()}")
            exchange = [Message(role="assistant", content=self.renderer.said(completion.ids)), *results]
            self.exchanged += exchange
            self.history += exchange
            delta = await asyncio.to_thread(self.renderer.delta, results, self.tools)
            self.record.prompt(self.record.continued(delta))
        return stop

    async def _shorten(self) -> None:
        """Continues from other messages if the task family gives some."""
        if self.compact is None or not self.record.turns:
            return
        messages = await self.compact(
            History(
                messages=tuple(self.history),
                context_tokens=len(self.record.context),
                max_context_tokens=self.sampling.max_context_tokens,
                turns=self.record.turns,
            )
        )
        if messages is not None:
            self.record.compact(await asyncio.to_thread(self.renderer.prompt, messages, self.tools))
            self.history = list(messages)

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

    def _room(self) -> tuple[int, LoopEnd]:
        """Number of tokens that may be sampled now, and the limit that sets it."""
        if self.record.turns >= self.sampling.max_turns:
            return 0, LoopEnd(reason="max_turns", truncated_by="turns")
        tokens = min(self.sampling.max_tokens_per_turn, self.sampling.max_tokens - self.record.sampled_tokens)
        context = self.sampling.max_context_tokens - len(self.record.context)
        if context < tokens:
            return context, LoopEnd(reason="context", truncated_by="context")
        return tokens, LoopEnd(reason="max_tokens", truncated_by="tokens")

    def _left(self) -> str:
        """Note of what the limits leave, before the answer that carries it."""
        turns = self.sampling.max_turns - self.record.turns
        tokens = self.sampling.max_tokens - self.record.sampled_tokens
        context = self.sampling.max_context_tokens - len(self.record.context)
        return f"[left: {turns} turns, {max(0, min(tokens, context))} tokens]"

    async def _generate(self, room: int) -> Completion:
        return await self.policy.generate(
            self.record.context,
            max_tokens=room,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            seed=turn_seed(self.sampling.seed, self.sample, self.record.turns),
            stop_token_ids=self.renderer.stop_ids,
        )

    async def _act(
        self, parsed: Parsed, completion: Completion, done: list[ToolCall], limit: LoopEnd, room: int
    ) -> LoopEnd | None:
        """Runs the calls of a turn into `done`; a `LoopEnd` when there were none, or one was final."""
        if not parsed.calls or not self.tools:
            if completion.finish_reason == "stop":
                return await self._answered(completion)
            if completion.finish_reason == "abort":
                raise InferenceError(f"backend {completion.backend!r} aborted a turn that nobody resumed")
            cut_early = len(completion.ids) < room  # the backend's own context was shorter
            return LoopEnd(reason="context", truncated_by="context") if cut_early else limit
        refused_before = self.refused
        for call in _limited(parsed.calls):
            try:
                async with self.clock.limit(self.keep_s):
                    final = await self._call(call, done)
            except TimeoutError:
                return LoopEnd(reason="time", truncated_by="time")
            if final:
                return LoopEnd(reason="finish")
        all_refused = self.refused - refused_before == len(done)
        self.refused_turns = self.refused_turns + 1 if all_refused else 0
        return LoopEnd(reason="protocol") if self.refused_turns >= MAX_REFUSED_TURNS else None

    async def _answered(self, completion: Completion) -> LoopEnd | None:
        """A turn that called no tool is the end, unless an environment has something to say to it."""
        try:
            async with self.clock.limit(self.keep_s):
                said = await self.reply(self.renderer.said(completion.ids)) if self.reply else None
        except TimeoutError:
            return LoopEnd(reason="time", truncated_by="time")
        self.replied = said or ""
        return LoopEnd(reason="answer") if said is None else None

    async def _call(self, call: Call, done: list[ToolCall]) -> bool:
        """Runs one call; true if it was final."""
        clock = asyncio.get_running_loop().time
        started = clock()
        timeout_s = max(0.1, min(self.sampling.tool_timeout_ms / 1000, self.clock.left_s))
        answer = await self._answer(call, ToolContext(sandbox=self.sandbox, timeout_s=timeout_s))
        refused = answer.refused is not None
        self.refused += refused
        self.calls += not refused
        metrics.tool_calls.labels(answer.refused or ("ok" if answer.ok else "failed")).inc()
        done.append(
            ToolCall(
                name=call.name,
                arguments=json.dumps(call.arguments) if call.error is None else call.source,
                result=answer.text,
                ok=answer.ok,
                seconds=clock() - started,
                refused=refused,
            )
        )
        if answer.final:
            self.answer = answer.text
        return answer.final

    async def _answer(self, call: Call, context: ToolContext) -> ToolAnswer:
        if call.error is not None:
            return refusal(Refused.UNREADABLE, call.error)
        return await call_tool(self.tools, call.name, call.arguments, context)

    def _turn_record(
        self, prompt_tokens: int, started: float, completion: Completion, done: Sequence[ToolCall]
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
            reply="" if done else self.replied,
        )


def _limited(calls: Sequence[Call]) -> Sequence[Call]:
    """The calls of a turn that are looked at; the rest get one answer together."""
    if len(calls) <= MAX_CALLS_PER_TURN:
        return calls
    rest = bad("", f"{len(calls)} calls in one turn: the first {MAX_CALLS_PER_TURN} were run, the others were not")
    return [*calls[:MAX_CALLS_PER_TURN], rest]
