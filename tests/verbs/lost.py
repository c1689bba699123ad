"""Cases of `test_lost_replies`: what each verb does when its reply was lost and it is sent again."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.support.queue import Queue

Act = Callable[[Queue], Awaitable[Any]]


class Case(NamedTuple):
    """`prepare` makes what the verb needs and gives the call that is then made, through the proxy or not."""

    prepare: Callable[[Queue], Awaitable[Act]]
    answer: Any  # to the repeat


CASES: dict[str, Case] = {}


def case(verb: str, answer: Any) -> Callable[[Callable[[Queue], Awaitable[Act]]], None]:
    """Declares the case of a verb, in any test of this folder."""

    def add(prepare: Callable[[Queue], Awaitable[Act]]) -> None:
        CASES[verb] = Case(prepare, answer)

    return add
