"""The door to reasoning-gym, which runs in a confined process of its own (`workers.handlers.forks`).

Three reasons: some of its scorers evaluate the answer as Python, and the answer is the policy's; some data sets depend
on the interpreter's hash seed, which is fixed there, so that INIT and EVAL on any node mean the same question; and a
generator or scorer that hangs or crashes costs only its own fork. Answers that would run as programs are refused here.
"""

import ast
import re
from typing import Any

import msgspec

from workers.handlers.forks import Forks

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})  # by eval()
ALGEBRAIC = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)  # by sympy, which ends in eval()
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln"}
    | {"sqrt", "Abs", "abs", "pi", "Rational"}
)
_VALUES = (
    ast.Expression, ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd,
)  # fmt: skip


class ScoringFailed(Exception):
    """The scorer could not give a score for this answer; the message says why."""


class GymError(Exception):
    """reasoning-gym failed to make a question: no answer is to blame."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a data set. `config` goes to the data set as keyword arguments."""

    name: str
    seed: int
    size: int = 500
    index: int = 0
    config: dict[str, Any] = {}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the question of a place, or, with an answer, for its score."""

    place: Place
    answer: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One of these. `no_entry` says why there is no such place, `no_score` what the scorer choked on."""

    question: str | None = None
    score: float | None = None
    no_entry: str | None = None
    no_score: str | None = None


def check_answer(name: str, answer: str) -> None:
    """Raises `ScoringFailed` for an answer that a scorer would run as a program rather than read as a value."""
    if name in EVALUATED:
        try:
            tree = ast.parse(answer.strip(" \t"), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # cannot be evaluated: the scorer reads it as text
        if not all(isinstance(node, _VALUES) for node in ast.walk(tree)):
            raise ScoringFailed("it is an expression, not a list of values")
    elif name in ALGEBRAIC:
        if re.search(r"[^0-9A-Za-z+\-*/^(). =\n,]|\.\s*[A-Za-z]|[A-Za-z)]\s*\.", answer):
            raise ScoringFailed("it has characters that no formula has")
        for word in re.findall(r"[A-Za-z]+", answer):
            if len(word) > 1 and word not in _FUNCTIONS:
                raise ScoringFailed(f"{word!r} is no function that a formula may use")


class GymClient:
    """Asks and scores. `close` ends the process."""

    def __init__(self) -> None:
        self._forks = Forks("workers.handlers.gym_process")

    async def question(self, place: Place) -> str:
        """Raises `LookupError` for a place that does not exist, `GymError` or `ScorerFailed` when we failed."""
        reply = await self._ask(Request(place=place))
        if reply is None or reply.question is None:
            raise GymError(f"making question {place.index} of {place.name} took too long, too much memory, or crashed")
        return reply.question

    async def score(self, place: Place, answer: str) -> float:
        """Raises `ScoringFailed` when the answer is to blame, `ScorerFailed` when we are."""
        check_answer(place.name, answer)
        reply = await self._ask(Request(place=place, answer=answer))
        if reply is None:
            raise ScoringFailed("scoring it took too long, too much memory, or crashed")
        if reply.score is None:
            raise ScoringFailed(reply.no_score or "the scorer gave nothing")
        return reply.score

    def close(self) -> None:
        self._forks.close()

    async def _ask(self, request: Request) -> Reply | None:
        """The reply; None when the fork died over it."""
        reply = await self._forks.ask_as(Reply, request)
        if reply is not None and reply.no_entry is not None:
            raise LookupError(reply.no_entry)
        return reply
