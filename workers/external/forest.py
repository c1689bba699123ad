"""The lineage forest of one attempt: which recorded ids stand for the history that a request brings.

Positions are places in conversations: a root key (pool, template's options, tools) and canonical messages lead from one
to the next. A completion hangs at the position where it was asked and opens the position behind it. Its ids are its own
and those of the completion that it continues; nothing is rendered to find them. Pure: nothing here waits or asks.
"""

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from prorl_mq.schema.turns import CompletionSpan
from workers.agent.hermes import Message
from workers.external.history import Said
from workers.inference.pictures import Picture
from workers.inference.protocol import Completion

Opened = Literal["other", "break"]
_START = 0
_WALKS = 8  # conversations whose places are kept


class GivenIds:
    """Ids of one attempt's calls and items. Each says which completion gave it out; nobody else's do."""

    def __init__(self) -> None:
        self._mark = f"_{secrets.token_hex(4)}x"

    def make(self, kind: str, number: int, place: int | None = None) -> str:
        return f"{kind}{self._mark}{number}" + ("" if place is None else f"_{place}")

    def number(self, given: str) -> int | None:
        """The number of the completion that gave it out; None for any other id."""
        number = given.partition(self._mark)[2].partition("_")[0]
        return int(number) if _is_number(number) else None

    def place(self, given: str) -> tuple[int, int] | None:
        """The number of the completion and the place of the call within it, for the id of a call."""
        number, _, place = given.partition(self._mark)[2].partition("_")
        return (int(number), int(place)) if _is_number(number) and _is_number(place) else None


def _is_number(text: str) -> bool:
    """Not one of thousands of digits, which `int` refuses."""
    return text.isdecimal() and len(text) < 10


@dataclass(kw_only=True, eq=False, slots=True)
class Node:
    """One completion and the ids that were put between it and the completion that it continues."""

    number: int
    base: "Node | None"  # whose ids come first; None: its prompt was rendered whole
    at: int  # the position where it was asked
    after: int
    asked: Hashable  # parameters, by which a repeated request is known
    twin: "Node | None"  # the completion that the same request had got before
    said: Said
    prompt: "array[int]"  # behind the base
    messages: Sequence[Message]  # that `prompt` was made of
    completion: Completion
    spans: Sequence[CompletionSpan]
    sent: int  # tokens before the completion
    opened: Opened  # why it would begin a row
    side: bool = False  # asked of a model that is not trained
    keeps_thinking: bool = False  # its prompt holds thoughts that the template would have dropped
    thinks: bool = False  # there are thoughts in it, or before it
    lost: bool = False  # nobody has read it to its end
    extended: bool = False  # a later request continues it
    pictures: Sequence[Picture] = ()  # in `prompt`, counted from the beginning of the path
    ids: "array[int]" = field(init=False)

    def __post_init__(self) -> None:
        self.ids = array("I", self.completion.ids)
        self.completion = replace(self.completion, ids=self.ids, logprobs=array("d", self.completion.logprobs))

    def path(self) -> "list[Node]":
        """From the one whose prompt was rendered whole to itself."""
        found: list[Node] = [self]
        while (base := found[-1].base) is not None:
            found.append(base)
        return found[::-1]

    def context(self) -> list[int]:
        """All ids up to its own last one."""
        whole = array("I")
        for each in self.path():
            whole += each.prompt
            whole += each.ids
        return whole.tolist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The place of a request: the completion that it continues, and the messages behind that one."""

    at: int
    parent: Node | None
    rest: Sequence[Said]
    rewritten: int  # messages known by their ids whose calls have been changed


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """A history that was placed, where no later completion changes its place unless `commit` says so."""

    root: Hashable
    history: list[Said]
    at: int
    parent: Node | None
    known: int  # messages up to that completion
    rewritten: int


class Forest:
    """All completions of one attempt."""

    def __init__(self) -> None:
        self.given = GivenIds()
        self.sampled: list[Node] = []
        self._edges: dict[tuple[int, Hashable], int] = {}
        self._positions = 1
        self._answers: dict[int, list[Node]] = {}
        self._passed: set[int] = set()  # positions that histories go through
        self._walks: OrderedDict[int, _Walk] = OrderedDict()  # by where they lead; the last one is the newest

    def place(self, root: Hashable, history: Sequence[Said]) -> Placement:
        """The deepest recorded completion whose whole history is the beginning of this one."""
        history = list(history)
        begun = self._begun(root, history)
        if begun is None:
            at, parent, known, rewritten, placed = self._step(_START, root), None, 0, 0, 0
        else:
            at, parent, known, rewritten = begun.at, begun.parent, begun.known, begun.rewritten
            placed = len(begun.history)
        settled = True
        for index, said in enumerate(history[placed:], placed + 1):
            self._passed.add(at)
            node = self._match(at, said) if said.role == "assistant" else None
            settled &= node is None or len(self._answers[at]) == 1
            if node is None:
                at = self._step(at, said.key)
            else:
                at, parent, known = node.after, node, index
                rewritten += node.said.calls != said.calls
        if settled:
            walk = _Walk(root=root, history=history, at=at, parent=parent, known=known, rewritten=rewritten)
            self._walks[at] = walk
            self._walks.move_to_end(at)
            if len(self._walks) > _WALKS:
                self._walks.popitem(last=False)
        return Placement(at=at, parent=parent, rest=history[known:], rewritten=rewritten)

    def _begun(self, root: Hashable, history: list[Said]) -> _Walk | None:
        """The longest walk that a history continues. Messages that were read once are the same objects."""
        found = None
        for walk in self._walks.values():
            length = len(walk.history)
            longer = found is None or length > len(found.history)
            if longer and walk.root == root and walk.history == history[:length]:
                found = walk
        return found

    def stored(self, at: int, asked: Hashable) -> Node | None:
        """The last completion of the same request."""
        return next((each for each in reversed(self._answers.get(at, ())) if each.asked == asked), None)

    def next_position(self) -> int:
        self._positions += 1
        return self._positions - 1

    def commit(self, node: Node, parent: Node | None) -> None:
        """Takes a completion. `parent` is the one that its history continues, whoever's ids it has."""
        if node.at in self._passed or node.at in self._answers:
            self._walks.clear()  # what was placed behind it may be this completion, too
        self.sampled.append(node)
        self._answers.setdefault(node.at, []).append(node)
        if parent is not None:
            parent.extended = True
            parent.lost = False

    def _step(self, at: int, key: Hashable) -> int:
        edge = (at, key)
        found = self._edges.get(edge)
        if found is None:
            found = self._edges[edge] = self.next_position()
        return found

    def _match(self, at: int, said: Said) -> Node | None:
        """The completion that a message of the assistant's is.

        An id that was given out outranks the calls' arguments; an edited text is another message, whatever its ids.
        """
        answers = [each for each in self._answers.get(at, ()) if each.said.text == said.text]
        given = {number for each in said.ids if (number := self.given.number(each)) is not None}
        if given:
            return next((each for each in reversed(answers) if each.number in given), None)
        alike = [each for each in answers if each.said.calls == said.calls]
        return max(alike, key=lambda each: (not each.lost, each.number), default=None)


def pictures_of(path: Sequence[Node]) -> list[Picture]:
    """The images in the prompts of a path."""
    return [picture for node in path for picture in node.pictures]


def routed(base: Node | None) -> int:
    """The number of tokens in front of what continues a completion whose routes are known."""
    return 0 if base is None or base.completion.routes is None else base.completion.routes.end


def left_out(node: Node, twins: Sequence[Node]) -> str:
    """Why a completion is not trained: side, unread, superseded; empty if it is. `twins`: of the same request."""
    if node.side:
        return "side"
    if node.extended:
        return ""
    if node.lost:
        return "unread"
    return "superseded" if any(each.extended for each in twins) else ""


def twins_of(sampled: Sequence[Node]) -> Iterator[tuple[Node, Sequence[Node]]]:
    """Each completion with those of the same request, where one was the repeat of another."""
    heads: dict[int, Node] = {}
    families: dict[int, list[Node]] = {}
    for node in sampled:
        head = node if node.twin is None else heads[node.twin.number]
        heads[node.number] = head
        families.setdefault(head.number, []).append(node)
    for node in sampled:
        yield node, families[heads[node.number].number]
