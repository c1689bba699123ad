"""Interception: a task family sees each tool call of a harness before the harness gets it, and each result before the
policy does.

What was sampled is never changed. A call that is refused does not reach the harness: the policy is told why, in the
place of a result, and sampled again. Both its answers are trained, and the refusal is prompt.
"""

import asyncio
import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

import msgspec

from workers.external.forest import Forest, Node, Placement
from workers.external.history import Said
from workers.handler import Run

NOT_RUN = "Not run: another call of the same answer was refused."


class ClientCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call that a model has sampled for a harness."""

    turn: int  # number of the completion among the model's; -1: a result is of no call that is known here
    place: int  # of the call within the completion
    name: str
    arguments: str  # JSON
    session: str = ""  # the agent of the harness that asked, as it calls it
    model: str = ""  # of another pool, by the name that the row gives it; empty: the policy


class Refuse(msgspec.Struct, frozen=True):
    """The call is not run; the policy reads this text as its result."""

    text: str


class End(msgspec.Struct, frozen=True):
    """The rollout ends with what was sampled so far; its stop reason is `intercepted: REASON`."""

    reason: str


class Interceptor(Protocol):
    """One rollout's. What it raises is not the policy's fault: the attempt fails, and the job is tried again."""

    async def call(self, call: ClientCall, /) -> Refuse | End | None:
        """Asked of each call, once. None lets it pass."""
        ...

    async def result(self, call: ClientCall, text: str, /) -> str | End | None:
        """Asked of each result when it is first brought, and again if it comes back changed, or its client left before
        the answer. A text stands for it from then on.
        """
        ...


class Interceptable:
    """A task family whose third-party agents may be watched."""

    def interceptor(self, context: Run) -> Interceptor | None:
        """Sees the tool calls of one rollout; None: nobody does."""
        del context
        return None


class OwingInterceptor:
    """An interceptor of which one knows whether it owes an answer."""

    def __init__(self, interceptor: Interceptor) -> None:
        self.interceptor = interceptor
        self.owed = 0

    @property
    def name(self) -> str:
        return f"the interceptor {type(self.interceptor).__name__}"

    async def call(self, call: ClientCall) -> Refuse | End | None:
        with self._owing():
            return await self.interceptor.call(call)

    async def result(self, call: ClientCall, text: str) -> str | End | None:
        with self._owing():
            return await self.interceptor.result(call, text)

    @contextlib.contextmanager
    def _owing(self) -> Iterator[None]:
        self.owed += 1
        try:
            yield
        finally:
            self.owed -= 1


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """A result in a history, and where it stands there: `key` is the same wherever the same result comes back."""

    at: int
    said: Said
    place: int  # among the results behind one message of the assistant's
    answer: Said | None  # that message
    key: Hashable


class Interception:
    """The answers of an interceptor in one model's conversations."""

    def __init__(self, interceptor: Interceptor, forest: Forest, model: str = "") -> None:
        self._interceptor, self._forest, self._model = interceptor, forest, model
        self._told: dict[Hashable, str | None] = {}  # of each result that was judged, the text that stands for it
        self._sessions: dict[int, str] = {}
        self._judges = asyncio.Lock()  # two requests may bring the same result at once

    async def results(self, history: Sequence[Said], place: Placement, session: str) -> End | None:
        """Judges the results that are new."""
        async with self._judges:
            for found in self._brought(history):
                if found.key in self._told:
                    continue
                call = self._call_of(found, place, len(history), session)
                answer = await self._interceptor.result(call, found.said.text)
                if isinstance(answer, End):
                    return answer
                if not isinstance(answer, str | None):
                    raise TypeError(
                        f"an interceptor's result() returned {answer!r:.100}. Return None, a str or End(reason)"
                    )
                self._told[found.key] = answer
        return None

    def shown(self, history: Sequence[Said]) -> list[Said]:
        """The messages as the policy reads them."""
        shown = list(history)
        for found in self._brought(history):
            if (text := self._told.get(found.key)) is not None:
                shown[found.at] = msgspec.structs.replace(found.said, text=text)
        return shown

    async def calls(self, node: Node, session: str) -> Sequence[Said] | End | None:
        """Judges the calls of a completion: the messages that the policy reads in place of results where one of them is
        refused; None if all pass.
        """
        self._sessions[node.number] = session
        answers = []
        for call in self._calls(node, session):
            answer = await self._interceptor.call(call)
            if isinstance(answer, End):
                return answer
            if not isinstance(answer, Refuse | None):
                raise TypeError(
                    f"an interceptor's call() returned {answer!r:.100}. Return None, Refuse(text) or End(reason)"
                )
            answers.append(answer)
        if not any(answers):
            return None
        texts = [NOT_RUN if each is None else each.text for each in answers]
        made = self._forest.given.make
        return [Said(role="tool", text=text, answers=made("call", node.number, at)) for at, text in enumerate(texts)]

    def _brought(self, history: Sequence[Said]) -> Iterator[Brought]:
        """All results, whether they name their calls or not: a harness decides what it sends."""
        answer, answers, place = None, 0, 0
        for at, said in enumerate(history):
            if said.role == "assistant":
                answer, answers, place = said, answers + 1, 0
            elif said.role == "tool":
                known = self._known(said) is not None
                where: Hashable = () if known or answer is None else (answers, place, answer.key)
                key = (said.answers, said.text, where)
                yield Brought(at=at, said=said, place=place, answer=answer, key=key)
                place += 1

    def _known(self, said: Said) -> ClientCall | None:
        """The call that a result names."""
        found = self._forest.given.place(said.answers)
        if found is None or found[0] >= len(self._forest.sampled):
            return None
        number, place = found
        calls = self._calls(self._forest.sampled[number], self._sessions.get(number, ""))
        return calls[place] if place < len(calls) else None

    def _call_of(self, found: Brought, place: Placement, length: int, session: str) -> ClientCall:
        """The call that a result names, or by its place behind the completion that the request continues."""
        if (known := self._known(found.said)) is not None:
            return known
        parent, before = place.parent, length - len(place.rest)
        if parent is not None and found.at - found.place == before:
            calls = self._calls(parent, self._sessions.get(parent.number, ""))
            if found.place < len(calls):
                return calls[found.place]
        told = found.answer.calls[found.place : found.place + 1] if found.answer else ()
        name, arguments = told[0] if told else ("", "")
        return ClientCall(
            turn=-1, place=found.place, name=name, arguments=arguments, session=session, model=self._model
        )

    def _calls(self, node: Node, session: str) -> Sequence[ClientCall]:
        return [
            ClientCall(
                turn=node.number, place=place, name=name, arguments=arguments, session=session, model=self._model
            )
            for place, (name, arguments) in enumerate(node.said.calls)
        ]
