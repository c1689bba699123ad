"""Facts of a departure: what a run held of keys that all runs share, checked as they come from another cell."""

import math
import re
from typing import Any, Final

import msgspec

from prorl_mq.errors import InvalidBatch
from prorl_mq.schema.ids import RunRef, public

ENTRY: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


class DepartureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Scores and counts are texts, as Redis gives them to a script; False where there was none. `answers` and `dapo`
    have a member and its score in turn.
    """

    seen: str | bool
    settings: str | bool = False
    unacked: str | bool = False
    carrying: str | bool = False
    paused: str | bool = False
    cancellable: list[str] = []
    answers: list[str] = []
    dapo: list[str] = []


def checked(run: RunRef, facts: Any) -> dict[str, Any]:
    """Raises `InvalidBatch`: it would be put where the duties look, before a script could refuse it."""
    try:
        found = msgspec.convert(facts, DepartureFacts)
    except msgspec.ValidationError as error:
        raise InvalidBatch(f"the last page of run {public(run)!r} has no such facts: {error}") from None
    for each in (found.seen, found.carrying, found.paused, *found.answers[1::2], *found.dapo[1::2]):
        if each is not False and not _is_score(each):
            raise InvalidBatch(f"{str(each)[:64]!r} is no score, in the facts of run {public(run)!r}")
    if found.unacked is not False and not str(found.unacked).isdecimal():
        raise InvalidBatch(f"{str(found.unacked)[:64]!r} is no number of groups, in the facts of run {public(run)!r}")
    for name in (*found.cancellable, *found.dapo[::2]):
        if name != run and not name.startswith(f"{run}:"):
            raise InvalidBatch(f"{name[:200]!r} is no part of run {public(run)!r}")
    if wrong := [each for each in found.answers[::2] if not ENTRY.fullmatch(each)]:
        raise InvalidBatch(f"{wrong[0][:64]!r} is no entry of the results of run {public(run)!r}")
    if len(found.answers) % 2 or len(found.dapo) % 2 or True in (found.seen, found.settings):
        raise InvalidBatch(f"the facts of run {public(run)!r} are incomplete: move it again")
    return msgspec.to_builtins(found)  # type: ignore[no-any-return]


def _is_score(text: str | bool) -> bool:
    try:
        return text is not True and math.isfinite(float(text))
    except ValueError:
        return False
