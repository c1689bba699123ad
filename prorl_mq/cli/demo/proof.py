"""Verifies that trajectories hold what backends sent: every id and every log-probability, byte for byte.

A backend's answer begins where the prompt that it was sent ends. So each run of sampled tokens is looked up by the ids
before it, and must be what one answer says, or several that follow each other (a turn that was aborted and resumed).
An answer serves for one turn of one trajectory only.
"""

import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prorl_mq.schema.trajectory import Segment, Trajectory, Turn


class ProvenAnswer(NamedTuple):
    """Content of one answer: ids as 64-bit integers, log-probabilities as 64-bit floats."""

    ids: bytes
    logprobs: bytes

    @property
    def tokens(self) -> int:
        return len(self.ids) // 8

    def begins(self, sampled: "ProvenAnswer") -> bool:
        """True if sampled tokens start with it."""
        return self.tokens > 0 and sampled.ids.startswith(self.ids) and sampled.logprobs.startswith(self.logprobs)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about one trajectory."""

    turns: int = 0  # those equal to what was sent
    tokens: int = 0
    faults: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return self.turns > 0 and not self.faults


class _Entry(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Entry] = []  # /inference/v1/generate
    token_logprobs: list[float] = []  # /v1/completions


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs


class _MetaInfo(msgspec.Struct):
    output_token_logprobs: list[tuple[float, int, Any]] = []


class _Generated(msgspec.Struct):
    """An answer of either of vLLM's routes, of SGLang's, or of ProRL's."""

    choices: list[_Choice] = []
    meta_info: _MetaInfo | None = None  # SGLang's
    response_ids: list[int] = []
    logprobs: list[float] | None = None


class _Asked(msgspec.Struct):
    token_ids: list[int] | None = None  # /inference/v1/generate
    prompt: list[int] | None = None  # /v1/completions
    input_ids: list[int] | None = None  # SGLang's /generate
    prompt_ids: list[int] | None = None  # ProRL's /generate


class Answers:
    """All that was sent, by prompt."""

    def __init__(self, kept: Iterable[tuple[bytes, bytes]]) -> None:
        self._by_prompt: defaultdict[bytes, list[ProvenAnswer]] = defaultdict(list)
        for request, answer in kept:
            asked = msgspec.json.decode(request, type=_Asked)
            prompt = asked.token_ids or asked.prompt or asked.input_ids or asked.prompt_ids or []
            self._by_prompt[integers(prompt)].append(read(answer))

    def take(self, segment: Segment, start: int, end: int) -> str | None:
        """Uses up what was sent for the sampled tokens `[start, end)`; a fault if nothing sent is equal to them."""
        ids, before = integers([*segment.prompt_ids, *segment.response_ids]), len(segment.prompt_ids)
        logprobs = floats([0.0 if value is None else value for value in segment.logprobs])
        at = start
        while at < end:
            sent = self._by_prompt[ids[: 8 * (before + at)]]
            rest = ProvenAnswer(ids[8 * (before + at) : 8 * (before + end)], logprobs[8 * at : 8 * end])
            found = next((answer for answer in sent if answer.begins(rest)), None)
            if found is None:
                return f"tokens [{at}, {end}) are in none of {len(sent)} answers to the {before + at} ids before them"
            sent.remove(found)
            at += found.tokens
        return None


def read(body: bytes) -> ProvenAnswer:
    """The numbers of an answer's body."""
    said = msgspec.json.decode(body, type=_Generated)
    if said.meta_info is not None:
        entries = said.meta_info.output_token_logprobs
        return ProvenAnswer(integers([token for _, token, _ in entries]), floats([entry[0] for entry in entries]))
    if not said.choices:
        return ProvenAnswer(integers(said.response_ids), floats(said.logprobs or []))
    [choice] = said.choices
    told = choice.logprobs
    return ProvenAnswer(
        integers(choice.token_ids), floats([entry.logprob for entry in told.content] or told.token_logprobs)
    )


def kept_in(directory: Path) -> Iterable[tuple[bytes, bytes]]:
    """Requests with their answers, as `prorl_mq.process.recorder` leaves them."""
    for answer in sorted(directory.glob("*.answer")):
        yield answer.with_suffix(".request").read_bytes(), answer.read_bytes()


def prove(trajectory: Trajectory, answers: Answers) -> Proof:
    """Looks up every turn."""
    faults, turns, tokens = [], 0, 0
    for number, turn in enumerate(trajectory.turns):
        if turn.left_out:  # only ids are kept of it
            continue
        fault = _looked_up(trajectory.segments[turn.segment], turn, answers)
        if fault is None:
            turns, tokens = turns + 1, tokens + turn.completion_tokens
        else:
            faults.append(f"turn {number}: {fault}")
    return Proof(turns=turns, tokens=tokens, faults=faults)


def _looked_up(segment: Segment, turn: Turn, answers: Answers) -> str | None:
    start = turn.prompt_tokens - len(segment.prompt_ids)
    return answers.take(segment, start, start + turn.completion_tokens)


def integers(values: Sequence[int]) -> bytes:
    return array.array("q", values).tobytes()


def floats(values: Sequence[float]) -> bytes:
    return array.array("d", values).tobytes()
