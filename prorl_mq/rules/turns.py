"""Pages of things that have their turn one after the other, so that a look at all of them is spread over many."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Gives each thing its turn. All of them have it at the first call, when nothing is known yet.

    >>> turns = Turns[int](2)
    >>> turns.of([1, 2, 3]), turns.of([1, 2, 3]), turns.of([1, 2, 3, 4]), turns.of([1, 2, 3, 4])
    ([1, 2, 3], [1, 2], [3], [1, 2])
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._begun = False
        self.left: list[T] = []

    def of(self, things: Iterable[T]) -> Sequence[T]:
        """The next page. `things` count when a new round begins; those that have gone since are still named."""
        if not self.left:
            self.over(things)
        return self.next()

    def over(self, things: Iterable[T]) -> None:
        """Begins a round over these unless one is under way."""
        self.left = self.left or list(things)

    def next(self) -> Sequence[T]:
        """The next page of the round."""
        size = self._size if self._begun else len(self.left)
        self._begun = True
        page, self.left = self.left[:size], self.left[size:]
        return page


class SharedTurns(Generic[T]):
    """Pages that owners share equally: one that owns thousands of things delays no other owner's.

    >>> turns = SharedTurns[str](2, owner=lambda name: name[0])
    >>> turns.over(["a1", "a2", "a3", "b1"])
    >>> turns.next(), turns.next(), turns.next()
    (['a1', 'b1', 'a2', 'a3'], ['a1', 'b1'], ['a2', 'b1'])
    """

    def __init__(self, size: int, *, owner: Callable[[T], str]) -> None:
        self._size = size
        self._owner = owner
        self._begun = False
        self._left: dict[str, list[T]] = {}  # of each owner, in the order of their turns

    def over(self, things: Iterable[T]) -> None:
        """The things that there are now. New ones have their turn before those of the same owner that had one."""
        now: dict[str, dict[T, None]] = {}
        for each in things:
            now.setdefault(self._owner(each), {})[each] = None
        owners = dict.fromkeys([owner for owner in self._left if owner in now] + list(now))
        self._left = {owner: _merged(self._left.get(owner, []), now[owner]) for owner in owners}

    def next(self) -> Sequence[T]:
        """The next page: one thing of each owner, then another of each that has more. At first all of them."""
        page = list(islice(self._in_turn(), self._size if self._begun else None))
        self._begun = True
        for owner, count in Counter(map(self._owner, page)).items():
            things = self._left.pop(owner)
            self._left[owner] = things[count:] + things[:count]
        return page

    def _in_turn(self) -> Iterator[T]:
        for level in zip_longest(*self._left.values()):
            yield from (each for each in level if each is not None)


def _merged(before: Iterable[T], now: dict[T, None]) -> list[T]:
    kept = [each for each in before if each in now]
    known = set(kept)
    return [each for each in now if each not in known] + kept
