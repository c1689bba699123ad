"""Token-exact capture of a conversation that somebody else leads.

Invariant: where a request's history is what was sent and answered before, its prompt is those very ids, an end of turn
and the ids of the messages that are new. Only a history that never was is rendered, and opens a segment of its own.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, Turn
from workers.agent.renderer import Renderer
from workers.agent.result import LoopEnd
from workers.agent.seeds import turn_seed
from workers.agent.tokens import TokenRecord
from workers.agent.tools import Tool
from workers.external.history import Said, answered
from workers.inference.protocol import Completion, ContextFull, InferenceError, Policy

MAX_BRANCHES = 16  # histories that can be gone on from: a harness may talk to several agents of its own


class LimitReached(Exception):
    """The rollout is over; `stop` names the limit."""

    def __init__(self, stop: LoopEnd) -> None:
        super().__init__(f"the limit of this rollout is reached: {stop.truncated_by}")
        self.stop = stop


class RecordedReply(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, as the APIs tell it."""

    number: int
    said: Said
    reasoning: str
    finish_reason: str  # stop, length
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class _Branch:
    """A history that the policy has seen, with the ids that stand for it."""

    history: Sequence[Said]
    tools: Sequence[str]
    ids: "array[int]"
    sampled: int  # of these, how many the last completion has; 0: it is not answered yet
    answered: bool
    turn: int = 0  # the number of the turn that answered it


class Recording:
    """All that one attempt's harness asked, as one trajectory."""

    def __init__(self, policy: Policy, renderer: Renderer, sampling: Sampling, sample: str) -> None:
        self._policy, self._renderer, self._sampling, self._sample = policy, renderer, sampling, sample
        self._branches: deque[_Branch] = deque(maxlen=MAX_BRANCHES)
        self._one_at_a_time = asyncio.Lock()
        self._started = asyncio.get_running_loop().time()
        self._record: TokenRecord | None = None
        self._unanswered: TokenRecord | None = None  # the first prompt, as it was asked last
        self.stop: LoopEnd | None = None
        self.failure: InferenceError | None = None
        self.over = asyncio.Event()  # a limit or our own failure ended it

    @property
    def turns(self) -> int:
        return self._record.turns if self._record else 0

    @property
    def asked(self) -> bool:
        """True if it was asked anything, answered or not."""
        return self._unanswered is not None

    async def ask(self, history: Sequence[Said], tools: Sequence[Tool], max_tokens: int | None = None) -> RecordedReply:
        """One completion. Raises `LimitReached`, and `InferenceError` when the policy cannot be reached."""
        async with self._one_at_a_time:
            prompt, branch = await asyncio.to_thread(self._prompt, tuple(history), tools)
            record = self._record
            messages = [said.message() for said in history]
            if record is None:
                record = TokenRecord(prompt, messages)
                self._unanswered = record
            room = self._room(len(prompt))
            started = asyncio.get_running_loop().time() - self._started
            completion = await self._generate(prompt, min(room, max_tokens or room), record.turns)
            if self._record is None:
                self._record = record
            else:
                record.prompt(prompt, messages)
            if branch is not None and branch.answered:
                record.followed(branch.turn, messages[len(branch.history) :])
            return self._take(record, history, tools, prompt, completion, started)

    async def trajectory(self, stop: LoopEnd) -> Trajectory | None:
        """The trajectory to train on; None if the policy was never asked."""
        record = self._record or self._unanswered
        if record is None:
            return None
        return await asyncio.to_thread(
            record.trajectory,
            stop_reason=stop.reason,
            truncated_by=stop.truncated_by,
            sampling=self._sampling,
            show=self._renderer.text,
        )

    def _prompt(self, history: Sequence[Said], tools: Sequence[Tool]) -> tuple[list[int], _Branch | None]:
        """The known ids of the longest history that this one continues, and the rest; else all rendered."""
        names = _signature(tools)
        for branch in sorted(self._branches, key=lambda branch: -len(branch.history)):
            known = len(branch.history)
            if branch.tools != names or tuple(history[:known]) != branch.history:
                continue
            new = history[known:]
            if not branch.answered and not new:
                return list(branch.ids), branch
            if branch.answered and new and all(said.role != "assistant" for said in new):
                tail = branch.ids[len(branch.ids) - branch.sampled :]
                return [*branch.ids, *self._renderer.after(tail, [said.message() for said in new], tools)], branch
        return self._renderer.prompt([said.message() for said in history], tools), None

    def _room(self, prompt_tokens: int) -> int:
        limits, sampled = self._sampling, self._record.sampled_tokens if self._record else 0
        tokens = min(limits.max_tokens_per_turn, limits.max_tokens - sampled)
        context = limits.max_context_tokens - prompt_tokens
        stop = None
        if self.turns >= limits.max_turns:
            stop = LoopEnd(reason="max_turns", truncated_by="turns")
        elif tokens <= 0:
            stop = LoopEnd(reason="max_tokens", truncated_by="tokens")
        elif context <= 0:
            stop = LoopEnd(reason="context", truncated_by="context")
        if stop is None:
            return min(tokens, context)
        raise self._over(stop)

    def _over(self, stop: LoopEnd) -> LimitReached:
        self.stop = stop
        self.over.set()
        return LimitReached(stop)

    async def _generate(self, prompt: Sequence[int], room: int, turn: int) -> Completion:
        sampling = self._sampling
        try:
            completion = await self._policy.generate(
                prompt,
                max_tokens=room,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=turn_seed(sampling.seed, self._sample, turn),
                stop_token_ids=self._renderer.stop_ids,
            )
        except ContextFull as error:
            raise self._over(LoopEnd(reason="context", truncated_by="context")) from error
        except TimeoutError as error:
            raise self._over(LoopEnd(reason="time", truncated_by="time")) from error
        except InferenceError as error:
            self.failure = error
            self.over.set()
            raise
        if completion.finish_reason == "abort":
            self.failure = InferenceError(f"backend {completion.backend!r} aborted a turn that nobody resumed")
            self.over.set()
            raise self.failure
        return completion

    def _take(
        self, record: TokenRecord, history: Sequence[Said], tools: Sequence[Tool], prompt: Sequence[int],
        completion: Completion, started: float,
    ) -> RecordedReply:  # fmt: skip
        record.sample(completion)
        parsed = self._renderer.parse(completion.ids, tools)
        said = answered(parsed)
        record.end_turn(
            Turn(
                segment=record.segment,
                prompt_tokens=len(prompt),
                completion_tokens=len(completion.ids),
                cached_tokens=completion.cached_tokens,
                finish_reason=completion.finish_reason,
                stop_token=completion.stop_token,
                started_seconds=started,
                llm_seconds=completion.seconds,
                text=self._renderer.text(completion.ids),
                content=said.text,
                reasoning=parsed.reasoning,
                client_calls=said.calls,
            )
        )
        names = _signature(tools)
        asked, whole = array("q", prompt), array("q", record.context)
        self._branches += [
            _Branch(history=tuple(history), tools=names, ids=asked, sampled=0, answered=False),
            _Branch(
                history=(*history, said),
                tools=names,
                ids=whole,
                sampled=len(completion.ids),
                answered=True,
                turn=record.turns - 1,
            ),
        ]
        return RecordedReply(
            number=record.turns,
            said=said,
            reasoning=parsed.reasoning,
            finish_reason="length" if completion.finish_reason == "length" else "stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(completion.ids),
        )


def _signature(tools: Sequence[Tool]) -> Sequence[str]:
    return tuple(msgspec.json.encode(tool.schema()).decode() for tool in tools)
