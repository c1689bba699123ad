"""A trace of rollouts for the simulation of routing: lengths, times and hashes of prefixes; no text, no token ids.

A file is JSON lines: a `TraceHead`, then a `TraceSession` for each sample. `docs/reference/routing.md` has an example.
"""

import hashlib
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from prorl_mq.schema.trajectory import Segment, Trajectory, Turn

VERSION: Final = 1
BLOCK: Final = 128  # tokens that one hash stands for
HASH_BYTES: Final = 6  # collisions are rare up to millions of blocks, and a number of JSON holds it exactly
Length = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class TraceHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file."""

    trace: int = VERSION  # version of the form
    block: Annotated[int, Meta(ge=1)] = BLOCK  # tokens


class TraceTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One completion. `started_s` counts from the start of its rollout."""

    segment: Length  # the token sequence of its session that it continues
    prompt: Length  # tokens that were sent
    answer: Length  # tokens that were sampled
    cached: Length | None  # tokens of the prompt that the backend had; null where it does not tell
    started_s: Seconds
    llm_s: Seconds
    tools_s: Seconds  # from the answer to the next turn; of the last turn, its tools
    calls_s: Sequence[Seconds] = ()  # of each tool call


class TraceSession(msgspec.Struct, frozen=True, kw_only=True):
    """One sample. Run and group are salted hashes, as blocks are: equal ones are the same in this file alone."""

    run: Length
    group: Length
    sample: Length  # its place in the group
    began_s: float | None  # of RUN, after that of the file's first session; null where the time line is cut
    outcome: str
    blocks: Sequence[Sequence[Length]]  # of each segment: a hash of all tokens up to the end of each whole block
    turns: Sequence[TraceTurn]


class Salted:
    """Hashes under one file's salt. The salt is kept nowhere, so nobody can try which ids a hash is of."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def name(self, text: str) -> int:
        return self._hash(b"n", text.encode())

    def blocks(self, segment: Segment) -> list[int]:
        """A hash for each whole block of a sequence, which stands for all that lies before its end."""
        ids = array("q", segment.prompt_ids)
        ids.extend(segment.response_ids)
        found, before = list[int](), b""
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            found.append(self._hash(before, ids[end - BLOCK : end].tobytes()))
            before = found[-1].to_bytes(HASH_BYTES, "big")
        return found

    def _hash(self, before: bytes, data: bytes) -> int:
        made = hashlib.blake2b(before + data, digest_size=HASH_BYTES, key=self._salt)
        return int.from_bytes(made.digest(), "big")


def session(
    salted: Salted, trajectory: Trajectory, *, run: str, group: str, sample: int, began_s: float | None, outcome: str
) -> TraceSession | None:
    """The trace of a sample; None where the policy has said nothing. Turns of other models are left out."""
    said = [turn for turn in trajectory.turns if not turn.model]
    if not said:
        return None
    behind = [max(0.0, later.started_seconds - _end(turn)) for turn, later in pairwise(said)]
    rest = [*behind, sum(call.seconds for call in said[-1].tool_calls)]
    return TraceSession(
        run=salted.name(run),
        group=salted.name(f"{run}:{group}"),
        sample=sample,
        began_s=began_s,
        outcome=outcome,
        blocks=[salted.blocks(each) for each in trajectory.segments],
        turns=[_turn(turn, seconds) for turn, seconds in zip(said, rest, strict=True)],
    )


def _end(turn: Turn) -> float:
    return turn.started_seconds + turn.llm_seconds


def _turn(turn: Turn, tools_s: float) -> TraceTurn:
    return TraceTurn(
        segment=turn.segment,
        prompt=turn.prompt_tokens,
        answer=turn.completion_tokens,
        cached=turn.cached_tokens,
        started_s=_rounded(turn.started_seconds),
        llm_s=_rounded(turn.llm_seconds),
        tools_s=_rounded(tools_s),
        calls_s=[_rounded(call.seconds) for call in turn.tool_calls],
    )


def _rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 4)
