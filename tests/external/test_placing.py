"""Histories whose beginnings were placed before are placed as if they came for the first time."""

from array import array
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.external.forest import Forest, Node, Placement
from workers.external.history import Said
from workers.inference.protocol import Completion

TEXTS = ("Yes", "No")
TALKS = st.lists(
    st.tuples(
        st.integers(0, 30), st.lists(st.tuples(st.booleans(), st.sampled_from(TEXTS)), max_size=4), st.booleans()
    ),
    max_size=25,
)


class Forgets(Forest):
    """Places each history from its first message on."""

    def _begun(self, root: object, history: list[Said]) -> None:
        del root, history


class Trusts(Forest):
    """A control: keeps what was placed, whatever was sampled since."""

    def commit(self, node: Node, parent: Node | None) -> None:
        kept = dict(self._walks)
        super().commit(node, parent)
        self._walks.update(kept)


def said(is_answer: bool, text: str) -> Said:
    return Said(role="assistant" if is_answer else "user", text=text)


def sample(forest: Forest, place: Placement, text: str) -> None:
    node = Node(
        number=len(forest.sampled), base=place.parent, at=place.at, after=forest.next_position(), asked=None, twin=None,
        said=said(True, text), prompt=array("I"), messages=(), spans=(), sent=0, opened="other",
        completion=Completion(ids=[1], logprobs=[-0.5], finish_reason="stop", backend="b"),
    )  # fmt: skip
    forest.commit(node, place.parent)


def told(place: Placement) -> tuple[Any, ...]:
    parent = None if place.parent is None else place.parent.number
    return place.at, parent, [(each.role, each.text) for each in place.rest], place.rewritten


def placed(forest: Forest, talks: Sequence[tuple[int, list[tuple[bool, str]], bool]]) -> list[tuple[Any, ...]]:
    """Where each history leads, some of which are asked for a completion then."""
    histories = [[said(False, "Hello")]]
    found = []
    for pick, more, asks in talks:
        history = [*histories[pick % len(histories)], *(said(*each) for each in more)]
        histories.append(history)
        place = forest.place("root", history)
        found.append(told(place))
        if asks:
            sample(forest, place, TEXTS[pick % 2])
    return found


@settings(max_examples=300, deadline=None)
@given(TALKS)
def test_a_known_beginning_changes_no_place(talks: list[tuple[int, list[tuple[bool, str]], bool]]) -> None:
    assert placed(Forest(), talks) == placed(Forgets(), talks)


def test_control_what_was_sampled_since_is_missed_where_walks_are_kept() -> None:
    talks = [(0, [(True, "Yes"), (False, "No")], False), (0, [], True), (1, [], False)]
    assert placed(Forest(), talks) == placed(Forgets(), talks)
    assert placed(Trusts(), talks) != placed(Forgets(), talks)
