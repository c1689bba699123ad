"""Token-exact capture of conversations that somebody else leads.

Invariant: the prompt of a call is the ids of the longest recorded history that it begins with, an end of turn, and the
ids of the messages that are new. Calls do not wait for each other: each is placed among what is recorded when it comes,
and its completion is recorded where it was placed.
"""

import asyncio
import itertools
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Segment, Trajectory, Turn
from workers.agent.parser import Parsed
from workers.agent.renderer import Renderer
from workers.agent.result import LoopEnd
from workers.agent.seeds import turn_seed
from workers.agent.tokens import verified
from workers.agent.tools import Tool
from workers.external.cutting import cut, cut_at
from workers.external.forest import Forest, Node, Placement, pictures_of, routed
from workers.external.history import BadRequest, Said, answered
from workers.external.interception import End, Interception, Interceptor
from workers.external.prompting import Prompt, PromptBuilder
from workers.external.reply import LimitReached, RecordedReply
from workers.external.rows import images_of, segments_and_turns, unanswered
from workers.handler import OtherModel
from workers.inference.arrived import Arrived
from workers.inference.pictures import pads, shown, without
from workers.inference.protocol import Completion, ContextFull, InferenceError, Policy
from workers.inference.routes import asked, whole

T = TypeVar("T")


class Recording:
    """All that one attempt's harness asked, as one trajectory."""

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        sampling: Sampling,
        sample: str,
        interceptor: Interceptor | None = None,
        *,
        others: Mapping[str, OtherModel] = {},
        beside: "Recording | None" = None,
        model: str = "",
        trained: bool = True,
    ) -> None:
        self._policy, self._renderer, self._sampling, self._sample = policy, renderer, sampling, sample
        self._forest = Forest()
        self._beside = beside  # the policy's, of another model
        self._trained = trained
        beside_it = partial(Recording, sampling=sampling, interceptor=interceptor, beside=self)
        self.others = {
            name: beside_it(each.policy, each.renderer, sample=f"{sample}:{name}", model=name, trained=each.trained)
            for name, each in others.items()
        }
        self._interception = None if interceptor is None else Interception(interceptor, self._forest, model)
        self._prompts = PromptBuilder(renderer, self._forest.given)
        self._turns: list[Turn] = []
        self._replies: list[RecordedReply] = []
        self._sampled_tokens = 0
        self._flying: set[int] = set()
        self._landed = asyncio.Event()
        self._started = asyncio.get_running_loop().time()
        self._unanswered: Prompt | None = None  # the first prompt, as it was asked last
        self.stop: LoopEnd | None = None
        self.failure: Exception | None = None
        self.over = asyncio.Event()  # a limit or our own failure ended it

    def of(self, model: str) -> "Recording":
        """The recording of a model by its name: of another pool's if it was declared, else of the policy."""
        return self.others.get(model, self)

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def asked(self) -> bool:
        """True if it was asked anything, answered or not."""
        return self._unanswered is not None

    async def ask(
        self,
        history: Sequence[Said],
        tools: Sequence[Tool],
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        side: bool = False,
        session: str = "",
    ) -> RecordedReply:
        """One completion. `side`: it is not trained. `session`: a label of who asks, which decides nothing.

        Raises `LimitReached`, `BadRequest` for ids outside the vocabulary, `InferenceError` when the policy cannot be
        reached.
        """
        side = side or not self._trained
        asked = (max_tokens, tuple(stop))
        place = self._forest.place((side, self._prompts.signature(tools)), self._prompts.canonical(history))
        twin = self._forest.stored(place.at, asked)
        if twin is not None and twin.lost:  # who did not get it to its end asks again
            twin.lost = False
            return self._replies[twin.number]
        place, history = await self._judged(place, history, session)
        while True:
            prompt = await self._prompts.of(place, history, tools)
            if prompt.pictures and (self.others or self._beside):
                raise BadRequest("images are not taken where an agent asks models of several pools: send text")
            if not self._turns:
                self._unanswered = prompt
            room = await self._room(len(prompt.ids))
            number = next(each for each in itertools.count(self.turns) if each not in self._flying)
            self._flying.add(number)
            started = asyncio.get_running_loop().time() - self._started
            try:
                completion = await self._generate(prompt, min(room, max_tokens or room), number)
            finally:
                self._flying.discard(number)
                self._landed.set()
                self._landed = asyncio.Event()
            reply = self._take(place, prompt, completion, tools, asked, twin, started, stop, side=side, session=session)
            refused = await self._refused(reply, session)
            if refused is None:
                return reply
            place = refused

    async def _judged(
        self, place: Placement, history: Sequence[Said], session: str
    ) -> tuple[Placement, Sequence[Said]]:
        """A request as the policy reads it. Raises `LimitReached` where a result ends the rollout."""
        if self._interception is None:
            return place, history
        await self._unless_ended(self._interception.results(history, place, session))
        shown = self._interception.shown(history)
        return replace(place, rest=shown[len(shown) - len(place.rest) :]), shown

    async def _refused(self, reply: RecordedReply, session: str) -> Placement | None:
        """The place behind a completion of which the harness gets nothing; None where it gets all of it."""
        if self._interception is None:
            return None
        node = self._forest.sampled[reply.number]
        try:
            told = await self._unless_ended(self._interception.calls(node, session))
        except asyncio.CancelledError:  # its client has gone, and a repeat must not get what nobody has judged
            node.asked, node.lost = object(), True
            raise
        if told is None:
            return None
        node.asked = object()  # no other request is answered with it
        return Placement(at=node.at, parent=node, rest=told, rewritten=0)

    async def _unless_ended(self, judging: Coroutine[Any, Any, T | End]) -> T:
        try:
            said = await judging
        except Exception as error:
            self.fail(error)
            raise InferenceError("what the task family does with tool calls has failed") from error
        if isinstance(said, End):
            raise self._over(LoopEnd(reason=f"intercepted: {said.reason}"))
        return said

    def lost(self, reply: RecordedReply) -> None:
        """Notes that nobody has read a reply to its end. The same request gets it again."""
        node = self._forest.sampled[reply.number]
        node.lost = not node.extended

    async def trajectory(self, stop: LoopEnd) -> Trajectory | None:
        """The trajectory to train on; None if the policy was never asked."""
        if self._unanswered is None:
            return None
        return await asyncio.to_thread(self._trajectory, stop)

    def _trajectory(self, stop: LoopEnd) -> Trajectory:
        segments, turns = self.rows()
        if not segments and self._unanswered is not None:
            segments = [unanswered(self._unanswered, self._renderer.text)]
        for name, other in self.others.items():
            told, said = other.rows()
            turns += [msgspec.structs.replace(each, segment=len(segments) + each.segment, model=name) for each in said]
            segments += [msgspec.structs.replace(each, opened_by="other") for each in told]
        pad = next((each.pad for each in pictures_of(self._forest.sampled)), None)
        return Trajectory(
            segments=segments, turns=turns, stop_reason=stop.reason, truncated_by=stop.truncated_by,
            temperature=self._sampling.temperature, top_p=self._sampling.top_p, top_k=self._sampling.top_k,
            images=images_of(self._forest.sampled), image_id=pad,
        )  # fmt: skip

    def rows(self) -> tuple[list[Segment], list[Turn]]:
        """Segments and turns of what this model was asked."""
        return segments_and_turns(self._forest.sampled, self._turns, self._renderer.text)

    def end(self, stop: LoopEnd) -> None:
        """Ends the rollout: of whichever model it was asked, no other call is answered."""
        self.stop = stop
        self.over.set()
        if self._beside is not None:
            self._beside.end(stop)

    def fail(self, error: Exception) -> None:
        """Notes that the attempt has failed, and ends it."""
        self.failure = error
        self.over.set()
        if self._beside is not None:
            self._beside.fail(error)

    async def _room(self, prompt_tokens: int) -> int:
        """Tokens that a completion may have. Waits where calls under way may use up the last turns."""
        limits = self._sampling
        while self.stop is None and self.turns < limits.max_turns <= self.turns + len(self._flying):
            await self._landed.wait()
        tokens = min(limits.max_tokens_per_turn, limits.max_tokens - self._sampled_tokens)
        context = limits.max_context_tokens - prompt_tokens
        stop = self.stop
        if stop is None and self.turns >= limits.max_turns:
            stop = LoopEnd(reason="max_turns", truncated_by="turns")
        elif stop is None and tokens <= 0:
            stop = LoopEnd(reason="max_tokens", truncated_by="tokens")
        elif stop is None and context <= 0:
            stop = LoopEnd(reason="context", truncated_by="context")
        if stop is None:
            return min(tokens, context)
        raise self._over(stop)

    def _over(self, stop: LoopEnd) -> LimitReached:
        self.end(stop)
        return LimitReached(stop)

    async def _generate(self, prompt: Prompt, room: int, turn: int) -> Completion:
        sampling = self._sampling
        routes = {} if self._beside is not None else asked(sampling, routed(prompt.base))
        unwanted = pads(prompt.pictures)
        wanted: dict[str, Any] = {**routes, **shown(prompt.pictures)}
        streams = sampling.continue_generation and not prompt.pictures
        more: dict[str, Any] = {**wanted, **({"arrived": Arrived()} if streams else {})}
        try:
            completion = await self._policy.generate(
                prompt.ids,
                max_tokens=room,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=turn_seed(sampling.seed, self._sample, turn),
                stop_token_ids=(*self._renderer.stop_ids, *unwanted),
                **more,
            )
            completion = without(completion, unwanted, len(prompt.ids))
            completion = await whole(self._policy, prompt.ids, completion, wanted)
        except ContextFull as error:
            raise self._over(LoopEnd(reason="context", truncated_by="context")) from error
        except TimeoutError as error:
            raise self._over(LoopEnd(reason="time", truncated_by="time")) from error
        except InferenceError as error:
            raise self._failed(error) from None
        if completion.finish_reason == "abort":
            raise self._failed(InferenceError(f"backend {completion.backend!r} aborted a turn that nobody resumed"))
        return completion

    def _failed(self, error: InferenceError) -> InferenceError:
        self.fail(error)
        return error

    def _take(
        self, place: Placement, prompt: Prompt, completion: Completion, tools: Sequence[Tool], asked: Hashable,
        twin: Node | None, started: float, stop: Sequence[str], *, side: bool, session: str,
    ) -> RecordedReply:  # fmt: skip
        sent, left = len(prompt.ids), self._sampling.max_tokens - self._sampled_tokens
        try:
            verified(completion, sent)
        except InferenceError as error:
            raise self._failed(error) from None
        if left <= 0:
            raise self._over(LoopEnd(reason="max_tokens", truncated_by="tokens"))
        stopped_by: str | None = None
        completion = cut(completion, left)  # calls at once share what is left of the job's tokens
        if stop:
            completion, stopped_by = cut_at(completion, stop, self._renderer.said)
        parsed = self._renderer.parse(completion.ids, tools)
        said = answered(parsed)
        if stopped_by is not None:
            said = msgspec.structs.replace(said, text=said.text.partition(stopped_by)[0].strip())
        node = Node(
            number=self.turns,
            base=prompt.base,
            at=place.at,
            after=self._forest.next_position(),
            asked=asked,
            twin=twin,
            said=said,
            prompt=prompt.added,
            messages=prompt.messages,
            pictures=prompt.brought,
            completion=completion,
            spans=verified(completion, sent),
            sent=sent,
            opened="break" if any(each.role == "assistant" for each in place.rest) else "other",
            side=side,
            keeps_thinking=prompt.keeps_thinking,
            thinks=bool(parsed.reasoning) or (prompt.base is not None and prompt.base.thinks),
        )
        self._forest.commit(node, place.parent)
        self._prompts.sampled(node, prompt)
        self._sampled_tokens += len(completion.ids)
        self._turns.append(self._turn(node, parsed, started, place.rewritten, session))
        self._replies.append(self._reply(node, parsed, stopped_by))
        return self._replies[-1]

    def _turn(self, node: Node, parsed: Parsed, started: float, rewritten: int, session: str) -> Turn:
        completion = node.completion
        return Turn(
            segment=0,  # known when all is
            prompt_tokens=node.sent,
            completion_tokens=len(completion.ids),
            cached_tokens=completion.cached_tokens,
            finish_reason=completion.finish_reason,
            stop_token=completion.stop_token,
            started_seconds=started,
            llm_seconds=completion.seconds,
            text=self._renderer.text(completion.ids),
            content=node.said.text,
            reasoning=parsed.reasoning,
            client_calls=node.said.calls,
            rewritten=rewritten,
            session=session,
        )

    def _reply(self, node: Node, parsed: Parsed, stopped_by: str | None) -> RecordedReply:
        completion, plain = node.completion, self._renderer.said(node.ids)
        texts = [self._renderer.text([token]) for token in completion.ids]
        return RecordedReply(
            number=node.number,
            given=self._forest.given,
            said=node.said,
            plain=plain if stopped_by is None else plain.partition(stopped_by)[0],
            reasoning=parsed.reasoning,
            finish_reason="length" if completion.finish_reason == "length" else "stop",
            stopped_by=stopped_by,
            prompt_tokens=node.sent,
            tokens=list(zip(texts, completion.logprobs, strict=True)),
        )
