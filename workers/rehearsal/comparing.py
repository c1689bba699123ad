"""Compares two rollouts of the same turns by what their worlds have answered. Pure."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from prorl_mq.schema.trajectory import Trajectory, Turn
from prorl_mq.schema.turns import CallResult, LoggedTurn
from prorl_mq.service.recorded import WorldDifference
from workers.agent.alike import alike, masked

CONTEXT_LINES: Final = 3
SHOWN_LINES: Final = 60


class ParsedOtherwise(Exception):
    """The tokens of a turn are other calls than they were."""


class Answered(NamedTuple):
    """Answers of the world to one turn. `named`: the calls, with their arguments; empty where nobody knows them."""

    calls: Sequence[CallResult]
    reply: str
    named: Sequence[str] = ()


def of_log(turn: LoggedTurn) -> Answered:
    return Answered([CallResult(each.result, each.ok, each.refused, each.seconds) for each in turn.calls], turn.reply)


def of_trajectory(turn: Turn) -> Answered:
    calls = [CallResult(each.result, each.ok, each.refused, each.seconds) for each in turn.tool_calls]
    return Answered(calls, turn.reply, [f"{each.name} {each.arguments}".strip() for each in turn.tool_calls])


def first_difference(
    recorded: Sequence[Answered], again: Trajectory, volatile: Sequence[str] = ()
) -> WorldDifference | None:
    """The first answer that differs, but for what `volatile` names. Refused calls have changed nothing, and are alike.
    A rollout that was cut may lack calls of its last turn, and answers to it. Raises `ParsedOtherwise`.
    """
    turns = [of_trajectory(turn) for turn in again.turns]
    for number, one in enumerate(recorded):
        if number == len(turns):
            ended = f"the rollout ends here: {again.stop_reason}"
            return differing(number, None, "the end", "the rollout continues", ended, volatile)
        other, last = turns[number], number == len(recorded) - 1
        before, now = len(one.calls), len(other.calls)
        final = number == len(turns) - 1 and now > 0  # a call that ends a rollout has none behind it
        if (before > now and not final) or (before < now and not last):
            raise ParsedOtherwise(
                f"turn {number} made {before} calls when it was recorded, and makes {now} now: the tokenizer, the "
                "renderer's settings, or the tools of the task are others than they were"
            )
        found = _in_turn(number, one, other, last=last, volatile=volatile)
        if found is not None:
            return found
    return None


def _in_turn(
    number: int, one: Answered, other: Answered, *, last: bool, volatile: Sequence[str]
) -> WorldDifference | None:
    for place, (before, now) in enumerate(zip(one.calls, other.calls, strict=False)):
        if not (before.refused and now.refused) and not alike(before, now, other.named[place], volatile):
            return differing(number, place, other.named[place], _told(before), _told(now), volatile)
    if len(one.calls) > len(other.calls):
        ended = f"the rollout ends behind call {len(other.calls) - 1}"
        return differing(number, len(other.calls), "the end", "the rollout continues", ended, volatile)
    if masked(one.reply, volatile) != masked(other.reply, volatile) and not (last and not one.reply):
        return differing(number, None, "what the environment says", one.reply, other.reply, volatile)
    return None


def export_difference(one: Any, other: Any, turn: int, volatile: Sequence[str] = ()) -> WorldDifference | None:
    """The difference of what two rollouts hand to EVAL behind their last turn."""
    before, now = _shown(one), _shown(other)
    if masked(before, volatile) == masked(now, volatile):
        return None
    return differing(turn, None, "what is handed to EVAL", before, now, volatile)


def differing(
    turn: int, call: int | None, what: str, recorded: str, replayed: str, volatile: Sequence[str] = ()
) -> WorldDifference:
    one, other = recorded.splitlines(), replayed.splitlines()
    like = [[masked(line, volatile) for line in each] for each in (one, other)]
    lines = list(_diff(one, other, *like)) or list(_diff(one, other, one, other))
    if len(lines) > SHOWN_LINES:
        lines = [*lines[:SHOWN_LINES], f"... {len(lines) - SHOWN_LINES} more lines"]
    return WorldDifference(turn=turn, call=call, what=what, recorded=recorded, replayed=replayed, lines=lines)


def _diff(one: Sequence[str], other: Sequence[str], likes: Sequence[str], other_likes: Sequence[str]) -> Iterator[str]:
    """Lines that differ and those around them. Lines whose `likes` are equal are alike."""
    matcher = difflib.SequenceMatcher(None, likes, other_likes, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        yield f"@@ line {group[0][1] + 1} recorded, {group[0][3] + 1} now @@"
        for kind, begin, end, first, beyond in group:
            if kind == "equal":
                yield from (f"  {line}" for line in one[begin:end])
            else:
                yield from (f"- {line}" for line in one[begin:end])
                yield from (f"+ {line}" for line in other[first:beyond])


def _told(result: CallResult) -> str:
    """An answer, and its state where that is not in its text."""
    state = "refused" if result.refused else "ok" if result.ok else "failed"
    return f"{result.text}\n({state})"


def _shown(value: Any) -> str:
    """Plain data as lines: each text of an object its own."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return "\n".join(f"{name}:\n{_shown(part)}" for name, part in value.items())
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()
