"""What a scorer raises is the policy's fault only where it takes another text, and never for I/O that passes."""

from collections.abc import Awaitable, Callable

import pytest

from workers.handlers.blame import Blamed, Fault, Raised, blaming, fault_of
from workers.handlers.clocks import AskTime
from workers.handlers.forks import ScorerFailed
from workers.handlers.rows import BadRow

pytestmark = pytest.mark.anyio


def scorer(faults: dict[str, list[Raised | None]]) -> tuple[Callable[[str, AskTime], Awaitable[str]], list[str]]:
    """Raises over a text what is listed for it, once each; takes every other one. And the texts that it was given."""
    given: list[str] = []

    async def score(text: str, _: AskTime) -> str:
        given.append(text)
        fault = (faults.get(text) or [None]).pop(0)
        if fault is not None:
            raise fault
        return f"score of {text}"

    return score, given


CANARY = "score of canary"
BAD, TIMED_OUT = Raised("ValueError: bad"), Raised("it took too long", passing=True)


@pytest.mark.parametrize(
    ("faults", "result", "tried"),
    [
        ({}, "score of said", ["said"]),
        ({"said": [BAD]}, Blamed("ValueError: bad", CANARY), ["said", "canary"]),
        ({"said": [BAD], "canary": [BAD]}, Blamed("ValueError: bad", "score of other"), ["said", "canary", "other"]),
        ({"said": [TIMED_OUT]}, "score of said", ["said", "canary", "said"]),
        ({"said": [TIMED_OUT, TIMED_OUT]}, Blamed("it took too long", CANARY), ["said", "canary", "said"]),
        ({"said": [TIMED_OUT, BAD]}, Blamed("ValueError: bad", CANARY), ["said", "canary", "said"]),
    ],
)
async def test_a_text_is_to_blame_where_another_is_taken(
    faults: dict[str, list[Raised | None]], result: object, tried: list[str]
) -> None:
    score, given = scorer({text: list(listed) for text, listed in faults.items()})
    assert (await blaming(score, "said", ["canary", "other"], "the scorer"), given) == (result, tried)


@pytest.mark.parametrize(("fault", "error"), [(BAD, BadRow), (TIMED_OUT, ScorerFailed)])
async def test_no_text_is_to_blame_where_none_is_taken(fault: Raised, error: type[Exception]) -> None:
    score, _ = scorer({"said": [BAD], "canary": [fault]})
    with pytest.raises(error, match="the scorer takes no text, not even one that it must take") as raised:
        await blaming(score, "said", ["canary"], "the scorer")
    assert getattr(raised.value, "retryable", None) is (error is ScorerFailed)


async def test_an_infrastructure_failure_is_nobodys_text() -> None:
    async def score(_: str, __: AskTime) -> str:
        raise ScorerFailed("the process did not start")

    with pytest.raises(ScorerFailed, match="did not start"):
        await blaming(score, "said", ["canary"], "the scorer")


def test_input_output_and_memory_may_pass_also_as_a_cause() -> None:
    wrapped = RuntimeError("scoring failed")
    wrapped.__cause__ = MemoryError()
    assert fault_of(OSError("disk")) == Fault(reason="OSError: disk", passing=True)
    assert fault_of(wrapped) == Fault(reason="RuntimeError: scoring failed", passing=True)
    assert fault_of(ValueError("half \ud800")) == Fault(reason="ValueError: half \\ud800", passing=False)
