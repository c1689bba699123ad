"""Pages of things that have their turn one after the other, so that a look at all of them is spread over many."""

from collections.abc import Iterable, Sequence
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
