"""How large a stored trajectory is, beside a format that repeats the whole prompt with every turn (ProRL's).

    python -m bench.trajectory_size [--turns 50] [--tokens 32768]

Ids are drawn with the skew of text from a vocabulary of 151,643; log-probabilities are single-precision numbers, as
backends send them: no two alike, so nothing compresses them much.
"""

import argparse
import json
import random
import struct
import time
import zlib

import msgspec

from prorl_mq.converters import prorl
from prorl_mq.schema import codec
from prorl_mq.schema.trajectory import Segment, Span, Trajectory, Turn, check

VOCABULARY = 151_643
PROMPT_TOKENS = 1500
SAMPLED_SHARE = 1 / 3  # of what follows the prompt; the rest is what tools printed


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one trajectory in each form, and milliseconds to store it."""

    tokens: int
    sampled_tokens: int
    stored: int
    deltas_json: int  # ProRL's messages without `input_ids`
    quadratic_json: int
    quadratic_ids: int  # how many ids the quadratic form writes
    quadratic_compressed: int
    check_ms: float
    encode_ms: float
    decode_ms: float


def made(turns: int, tokens: int) -> Trajectory:
    """A trajectory of random tokens: each turn samples, and its tools answer."""
    source = random.Random(0)
    per_turn = (tokens - PROMPT_TOKENS) // turns
    sampled = int(per_turn * SAMPLED_SHARE)
    inserted = per_turn - sampled
    length = turns * per_turn - inserted  # the last turn is the answer
    mask = [int(place % per_turn < sampled) for place in range(length)]
    starts = range(0, length, per_turn)
    segment = Segment(
        prompt_ids=[_token(source) for _ in range(PROMPT_TOKENS)],
        response_ids=[_token(source) for _ in range(length)],
        loss_mask=mask,
        logprobs=[_logprob(source) if each else None for each in mask],
        spans=[Span(start=at, end=at + sampled, backend="http://node1:8000", version=("7", "7")) for at in starts],
    )
    return Trajectory(segments=[segment], turns=[_turn(at, sampled) for at in starts], stop_reason="answer")


def _turn(start: int, sampled: int) -> Turn:
    return Turn(
        segment=0,
        prompt_tokens=PROMPT_TOKENS + start,
        completion_tokens=sampled,
        cached_tokens=PROMPT_TOKENS + start,
        finish_reason="stop",
        llm_seconds=1.0,
        text="",
    )


def _token(source: random.Random) -> int:
    return min(VOCABULARY - 1, int(source.paretovariate(0.35)) - 1)


def _logprob(source: random.Random) -> float:
    """Half of sampled tokens are almost certain."""
    value = -source.expovariate(1.5) if source.random() < 0.5 else -source.random() * 1e-4
    return float(struct.unpack("f", struct.pack("f", value))[0])


def sizes(turns: int, tokens: int) -> Sizes:
    trajectory = made(turns, tokens)
    started = time.perf_counter()
    check(trajectory)
    checked = time.perf_counter()
    stored = codec.encode_trajectory(trajectory)
    encoded = time.perf_counter()
    codec.decode_trajectory(stored)
    decoded = time.perf_counter()
    quadratic = prorl.messages(trajectory)
    written = json.dumps(quadratic).encode()
    [segment] = trajectory.segments
    return Sizes(
        tokens=len(segment.prompt_ids) + len(segment.response_ids),
        sampled_tokens=sum(segment.loss_mask),
        stored=len(stored),
        deltas_json=len(json.dumps(prorl.messages(trajectory, input_ids=False)).encode()),
        quadratic_json=len(written),
        quadratic_ids=sum(len(message.get("input_ids") or ()) for message in quadratic),
        quadratic_compressed=len(zlib.compress(written, 6)),
        check_ms=(checked - started) * 1e3,
        encode_ms=(encoded - checked) * 1e3,
        decode_ms=(decoded - encoded) * 1e3,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The size of a stored trajectory")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=32768)
    given = parser.parse_args()
    found = sizes(given.turns, given.tokens)
    print(f"{given.turns} turns, {found.tokens} tokens, {found.sampled_tokens} of them sampled")
    for name, size in (
        ("stored", found.stored),
        ("deltas as JSON", found.deltas_json),
        ("whole prompts as JSON", found.quadratic_json),
        ("whole prompts, compressed", found.quadratic_compressed),
    ):
        print(f"  {name:26} {size / 1024:8.0f} KiB   {size / found.stored:6.1f} x stored")
    print(f"  ids in whole prompts       {found.quadratic_ids:8,}")
    print(f"  check {found.check_ms:.1f} ms, encode {found.encode_ms:.1f} ms, decode {found.decode_ms:.1f} ms")


if __name__ == "__main__":
    main()
