"""The door to reasoning-gym, which runs in a confined process of its own (`workers.handlers.forks`).

Three reasons: some of its scorers evaluate the answer as Python, and the answer is the policy's; some data sets depend
on the interpreter's hash seed, which is fixed there, so that INIT and EVAL on any node mean the same question; and a
generator or scorer that hangs or crashes costs only its own fork. Answers that would run as programs are refused here.
"""

import ast
import re
from typing import Any

import msgspec

from workers.handlers.blame import Blamed, Raised, ScorerReply, blaming, reply_of
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import Forks, ScorerFailed
from workers.handlers.rows import BadRow
from workers.syntax import parsed

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


class DatasetPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a data set. `config` goes to the data set as keyword arguments."""

    name: str
    seed: int
    size: int = 500
    index: int = 0
    config: dict[str, Any] = {}


class GymEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a data set as a row brings it: `question`, `answer` and `metadata`."""

    name: str
    entry: dict[str, Any]


class GymRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the question of a place, or for the score of an answer, or of the data set's own answer (`own`)."""

    place: DatasetPlace | None = None
    entry: GymEntry | None = None  # in place of a place
    answer: str | None = None
    own: bool = False


class GymScore(ScorerReply, frozen=True, kw_only=True):
    """One of these. `no_entry` says why there is no such place, `fault` what the scorer raised."""

    question: str = ""
    score: float = 0.0
    no_entry: str | None = None


def check_answer(name: str, answer: str) -> None:
    """Raises `ScoringFailed` for an answer that a scorer would run as a program rather than read as a value."""
    if name in EVALUATED:
        try:
            tree = parsed(answer.strip(" \t"), mode="eval")
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

    async def question(self, place: DatasetPlace) -> str:
        """Raises `BadRow` for a place that does not exist or is refused, `ScorerFailed` when we failed."""
        try:
            return (await self._ask(GymRequest(place=place))).question
        except Raised as raised:
            raise ScorerFailed(f"question {place.index} of {place.name} cannot be made: {raised}") from raised

    async def score(self, asked: DatasetPlace | GymEntry, answer: str, clock: EvalClock | None = None) -> float:
        """Raises `ScoringFailed` when the answer is to blame, and what `blaming` raises when it is not."""
        check_answer(asked.name, answer)
        of = GymRequest(entry=asked) if isinstance(asked, GymEntry) else GymRequest(place=asked)
        said, canary = msgspec.structs.replace(of, answer=answer), msgspec.structs.replace(of, own=True)
        reply = await blaming(self._ask, said, [canary], f"the scorer of {asked.name}", clock)
        if isinstance(reply, Blamed):
            raise ScoringFailed(reply.reason)
        return reply.score

    def close(self) -> None:
        self._forks.close()

    async def _ask(self, request: GymRequest, given: AskTime | None = None) -> GymScore:
        """Raises `Raised` and `BadRow`."""
        reply = await reply_of(self._forks, GymScore, request, given)
        if reply.no_entry is not None:
            raise BadRow(reply.no_entry)
        return reply
