"""Sessions to replay: generated ones with stated parameters, and recorded ones."""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.converters.routing_trace import VERSION, TraceHead, TraceSession

GROUP: Final = 8  # samples of one prompt
BLOCK: Final = 256  # tokens of a block of generated sessions


class Step(msgspec.Struct, frozen=True):
    """One turn: the length of its prompt and answer in tokens, and what happens until the next one."""

    prompt: int
    answer: int
    tools_s: float


class Session(msgspec.Struct, frozen=True):
    """One rollout. `blocks` name its sequence in each turn, whole blocks and the last part."""

    name: str
    group: str
    steps: Sequence[Step]
    blocks: Sequence[Sequence[int]]

    @property
    def answers(self) -> int:
        return sum(step.answer for step in self.steps)


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of generated sessions: medians of log-normal values, each with its spread."""

    turns: float = 17.0
    turns_spread: float = 0.5
    prompt: float = 3_000.0
    prompt_spread: float = 0.3
    answer: float = 250.0
    answer_spread: float = 0.7
    result: float = 600.0
    result_spread: float = 0.8
    tools_s: float = 6.0
    tools_spread: float = 1.0
    longest: int = 100_000  # tokens of a session


MIXES: Final = {
    "agents": Mix(),
    "short tools": Mix(tools_s=1.5),
    "long tools": Mix(tools_s=25.0),
    "long sessions": Mix(turns=35.0, result=900.0),
    "reasoning": Mix(turns=6.0, answer=1_500.0, result=300.0),
    "long prompts": Mix(prompt=30_000.0, turns=8.0, result=300.0),
}
# Long answers between long tools: what is kept for tools that work is room that answers could have.
SLOW: Final = {
    "four minutes": Mix(turns=6.0, answer=4_000.0, answer_spread=0.3, result=300.0, tools_s=250.0, tools_spread=0.3),
    "two minutes": Mix(turns=6.0, answer=3_000.0, result=300.0, tools_s=120.0, tools_spread=0.5),
    "a minute": Mix(turns=6.0, answer=3_000.0, result=300.0, tools_s=60.0, tools_spread=0.5),
    "a minute, shorter answers": Mix(turns=6.0, answer=1_500.0, result=300.0, tools_s=60.0),
}


def generated(mix: Mix, seed: int) -> Iterator[Session]:
    """Groups of sessions without end."""
    source, names = random.Random(seed), count(1)

    def drawn(median: float, spread: float) -> int:
        return max(1, round(median * source.lognormvariate(0.0, spread)))

    for group in count(1):
        prompt = drawn(mix.prompt, mix.prompt_spread)
        shared = [next(names) for _ in range(prompt // BLOCK)]
        for sample in range(GROUP):
            steps, length = list[Step](), prompt
            for _ in range(min(80, drawn(mix.turns, mix.turns_spread))):
                answer = drawn(mix.answer, mix.answer_spread)
                if length + answer > mix.longest:
                    break
                steps.append(Step(length, answer, mix.tools_s * source.lognormvariate(0.0, mix.tools_spread)))
                length += answer + drawn(mix.result, mix.result_spread)
            own = [next(names) for _ in range(length // BLOCK + 2 - len(shared))]
            blocks = [*shared, *own]
            yield Session(f"{group}:{sample}", str(group), steps, [blocks] * len(steps))


class TraceUnread(Exception):
    """A file is no trace; the message names it, and its line."""


def recorded(path: Path) -> tuple[int, list[Session]]:
    """The tokens of a block, and the sessions of a file that `prorl-mq record` wrote. Raises `TraceUnread`."""
    found, names = list[Session](), count(1 << 60)
    with path.open("rb") as file:
        try:
            head = msgspec.json.decode(file.readline(), type=TraceHead)
            for line in file:
                found.append(_replayed(msgspec.json.decode(line, type=TraceSession), head.block, names))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TraceUnread(f"{path}:{len(found) + 1 + bool(found)} is no line of a trace: {error}") from None
    if head.trace != VERSION:
        raise TraceUnread(f"{path} is a trace of version {head.trace}, this reads {VERSION}: record it again")
    if not found:
        raise TraceUnread(f"{path} has no session")
    return head.block, found


def _replayed(told: TraceSession, block: int, names: Iterator[int]) -> Session:
    steps = [Step(turn.prompt, max(1, turn.answer), turn.tools_s) for turn in told.turns]
    wholes = [list(each) for each in told.blocks]
    for turn, step in zip(told.turns, steps, strict=True):  # the last part of a sequence has no hash
        row = wholes[turn.segment]
        row += [next(names) for _ in range((step.prompt + step.answer) // block + 2 - len(row))]
    return Session(f"{told.group}:{told.sample}", str(told.group), steps, [wholes[turn.segment] for turn in told.turns])
