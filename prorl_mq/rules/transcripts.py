"""Full-text search in what agents said and tools answered. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.schema.trajectory import Trajectory

AROUND: Final = 80  # characters on each side of a hit
HITS: Final = 3  # of one sample


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One place where all words of a search stand. `turn`: null in a prompt, a note or an error."""

    group_id: str
    batch_id: str
    task_id: str
    job_id: str
    outcome: str
    reward: float | None
    turn: int | None
    where: str  # task, prompt, message, arguments, result, reply, note, error
    excerpt: str
    match: tuple[int, int]  # of the first word, in the excerpt


class Words:
    """A search: words that must all stand in one text, in any order and case. Words in quotes stay together.

    Found without regular expressions: those take time by the product of both lengths, and hold up the whole process.
    """

    def __init__(self, query: str) -> None:
        """Raises `ValueError` for a query without a word."""
        found = [_folded(quoted or bare) for quoted, bare in re.findall(r'"([^"]+)"|(\S+)', query)]
        if not found:
            raise ValueError("q is empty: give words to search for")
        self._first, *self._others = dict.fromkeys(found)

    def place(self, text: str) -> tuple[int, int] | None:
        """The place of the first word, if all of them stand there."""
        folded = _folded(text)
        first = folded.find(self._first)
        return (
            (first, first + len(self._first)) if first >= 0 and all(each in folded for each in self._others) else None
        )


def _folded(text: str) -> str:
    """In lower case and of the same length: `İ` alone has two characters there."""
    return text.replace("İ", "i").lower()


def hits(words: Words, record: GroupRecord, trajectories: Mapping[str, Trajectory]) -> Iterator[Hit]:
    """The hits in a group, by sample; of one sample the first three."""
    for sample in record.samples:
        found = 0
        for turn, where, text in _texts(record, sample, trajectories.get(sample.job_id)):
            place = words.place(text)
            if place is not None:
                found += 1
                yield _hit(record, sample, turn, where, text, place)
            if found == HITS:
                break


def _texts(
    record: GroupRecord, sample: SampleRecord, trajectory: Trajectory | None
) -> Iterator[tuple[int | None, str, str]]:
    yield None, "task", record.task_id
    yield None, "note", sample.note or ""
    if sample.error is not None:
        yield None, "error", f"{sample.error.type}: {sample.error.message}\n{sample.error.traceback or ''}"
    if trajectory is None:
        return
    for segment in trajectory.segments:
        yield None, "prompt", segment.prompt_text
    for number, turn in enumerate(trajectory.turns):
        yield number, "message", turn.text
        for call in turn.tool_calls:
            yield number, "arguments", f"{call.name} {call.arguments}"
            yield number, "result", call.result
        yield number, "reply", turn.reply


def _hit(
    record: GroupRecord, sample: SampleRecord, turn: int | None, where: str, text: str, place: Sequence[int]
) -> Hit:
    start, end = place
    first = max(0, start - AROUND)
    return Hit(
        group_id=record.group_id,
        batch_id=record.batch_id,
        task_id=record.task_id,
        job_id=sample.job_id,
        outcome=sample.outcome.value,
        reward=sample.reward,
        turn=turn,
        where=where,
        excerpt=text[first : end + AROUND],
        match=(start - first, end - first),
    )
