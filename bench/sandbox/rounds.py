"""All contenders side by side: set up once, then a few samples of each in every round, forth and back."""

import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from bench import measure
from bench.sandbox.contender import Contender, Measure, Setting

WARM_UP_SHARE = 0.1
Row = dict[str, str | int | float]


class Found(msgspec.Struct, kw_only=True):
    """What all rounds gave. A case is a quantity of a contender."""

    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}  # of every sample of a case
    errors: dict[str, str] = {}  # contender: why it has no figures, or not of all rounds


def case_of(quantity: str, contender: str) -> str:
    return f"{quantity} | {contender}"


async def run_rounds(contenders: Sequence[Contender], setting: Setting, *, rounds: int, share: float) -> Found:
    """`share` of the samples that each contender wants a round."""
    found = Found()
    async with AsyncExitStack() as stack:
        ready: list[tuple[Contender, Measure]] = []
        for contender in contenders:
            try:
                asked = await stack.enter_async_context(contender.make(setting))
                await asked(max(1, int(contender.samples * WARM_UP_SHARE)))
            except Exception as error:
                found.errors[contender.name] = f"{type(error).__name__}: {error}"
                say(f"{contender.name}: {found.errors[contender.name]}")
            else:
                ready.append((contender, asked))
        for number in range(rounds):
            began = time.monotonic()
            for contender, asked in ready if number % 2 == 0 else ready[::-1]:
                if contender.name not in found.errors:
                    await _round(contender, asked, number, share, found)
            say(f"round {number + 1} of {rounds}: {time.monotonic() - began:.0f} s, load {measure.load()}")
    return found


async def _round(contender: Contender, asked: Measure, number: int, share: float, found: Found) -> None:
    try:
        samples = await asked(max(1, int(contender.samples * share)))
    except Exception as error:
        found.errors[contender.name] = f"{type(error).__name__} in round {number + 1}: {error}"
        say(f"{contender.name}: {found.errors[contender.name]}")
        return
    for quantity, seconds in samples.items():
        case = case_of(quantity, contender.name)
        p50 = 1e3 * measure.percentile(seconds, 0.5)
        found.rows.append({"case": case, "quantity": quantity, "contender": contender.name, "round": number,
                           "samples": len(seconds), "p50_ms": p50})  # fmt: skip
        found.seconds.setdefault(case, []).extend(seconds)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
