"""Interception: a task family sees each tool call of a harness before the harness gets it, and each result before the
policy does.

What was sampled is never changed. A call that is refused does not reach the harness: the policy is told why, in the
place of a result, and sampled again. Both its answers are trained, and the refusal is prompt.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from workers.external.forest import Forest, Node
from workers.external.history import Said
from workers.handler import Run

NOT_RUN = "Not run: another call of the same answer was refused."


class ClientCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call that the policy has sampled for a harness."""

    turn: int  # number of the completion within the rollout
    place: int  # of the call within the completion
    name: str
    arguments: str  # JSON
    session: str = ""  # the agent of the harness that asked, as it calls it


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
        """Asked of the result of each call when it is first brought. A text stands for it from then on."""
        ...


class Interceptable:
    """A task family whose third-party agents may be watched."""

    def interceptor(self, context: Run) -> Interceptor | None:
        """Sees the tool calls of one rollout; None: nobody does."""
        del context
        return None


class Interception:
    """The answers of an interceptor in one attempt."""

    def __init__(self, interceptor: Interceptor, forest: Forest) -> None:
        self._interceptor, self._forest = interceptor, forest
        self._judged: set[str] = set()
        self._told: dict[str, str] = {}  # by the id of a call, the text that stands for its result
        self._sessions: dict[int, str] = {}

    async def results(self, brought: Sequence[Said]) -> End | None:
        """Judges the results that are new."""
        for said in brought:
            found = self._forest.given.place(said.answers)
            if found is None or said.answers in self._judged:
                continue
            self._judged.add(said.answers)
            number, place = found
            calls = self._calls(self._forest.sampled[number], self._sessions.get(number, ""))
            answer = await self._interceptor.result(calls[place], said.text) if place < len(calls) else None
            if isinstance(answer, End):
                return answer
            if isinstance(answer, str):
                self._told[said.answers] = answer
        return None

    def shown(self, history: Sequence[Said]) -> Sequence[Said]:
        """The messages as the policy reads them."""
        if not self._told:
            return history
        return [
            msgspec.structs.replace(said, text=self._told[said.answers]) if said.answers in self._told else said
            for said in history
        ]

    async def calls(self, node: Node, session: str) -> Sequence[Said] | End | None:
        """Judges the calls of a completion: the messages that the policy reads in place of results where one of them is
        refused; None if all pass.
        """
        self._sessions[node.number] = session
        answers = []
        for call in self._calls(node, session):
            answers.append(await self._interceptor.call(call))
            if isinstance(answers[-1], End):
                return answers[-1]
        if not any(answers):
            return None
        texts = [each.text if isinstance(each, Refuse) else NOT_RUN for each in answers]
        made = self._forest.given.make
        return [Said(role="tool", text=text, answers=made("call", node.number, at)) for at, text in enumerate(texts)]

    @staticmethod
    def _calls(node: Node, session: str) -> Sequence[ClientCall]:
        return [
            ClientCall(turn=node.number, place=place, name=name, arguments=arguments, session=session)
            for place, (name, arguments) in enumerate(node.said.calls)
        ]
