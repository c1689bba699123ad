"""`prorl-mq regrade`: scores samples of a file again, with the EVAL code that is installed now.

The target has the same lines with their new rewards, and appears when it is complete.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from prorl_mq.cli.samples.files import Line, row, samples, tasks
from prorl_mq.cli.samples.program import answers
from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process.screen.tables import table
from prorl_mq.schema.messages import Task
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service.recorded import RegradeAnswer, RegradeOrder

FAULTS = (ProrlError,)  # 1 says that some samples keep their rewards
NO_REWARD: Final = "it had no reward: it ended as {}"
NO_TRAJECTORY: Final = "it has no trajectory, which would hold what RUN handed over"


class Regraded(msgspec.Struct, kw_only=True):
    """Counts of one data source."""

    up: int = 0
    down: int = 0
    same: int = 0
    left: Counter[str] = msgspec.field(default_factory=Counter)  # samples whose old reward stays, by the reason
    before: float = 0.0  # sums of the rewards of those that were scored
    after: float = 0.0

    @property
    def scored(self) -> int:
        return self.up + self.down + self.same


async def run(given: argparse.Namespace) -> int:
    """Exit codes: 0 all samples that had a reward are scored again, 1 some are not, 2 nothing was written."""
    if given.out.exists():
        raise ConfigurationError(f"{given.out} already exists: remove it, or choose another --out")
    rows = tasks(given.rows, given.data_source)
    for line in samples(given.samples):
        if line.sample.reward is not None:
            row(rows, given.rows, line.sample.task_id)
    part = given.out.with_name(f".{given.out.name}.part")
    try:
        with part.open("wb") as file:
            found = await _regrade(given, rows, file)
        part.replace(given.out)
    except OSError as error:
        raise ConfigurationError(f"{given.out} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    print(msgspec.json.encode(found).decode() if given.json else regraded_text(found, given.out))
    return int(any(each.left for each in found.values()))


async def _regrade(given: argparse.Namespace, rows: Mapping[str, Task], file: BinaryIO) -> dict[str, Regraded]:
    """Writes each sample, in order; what came of it by data source."""
    found: dict[str, Regraded] = {}
    lines = samples(given.samples)  # again, beside what is sent: a file may be larger than memory

    def write_until(answer: RegradeAnswer | None) -> None:
        """Writes the samples that were not sent, up to the one that was answered, or to the end."""
        for line in lines:
            mine = answer if answer is not None and _trajectory(line) is not None else None
            _note(found, line, mine)
            file.write(msgspec.json.encode(_fields(line, mine)) + b"\n")
            if mine is not None:
                return

    where = {"sandbox": given.sandbox, "state_dir": given.state_dir}
    async for answer in answers("regrade", _orders(given.samples, rows), RegradeAnswer, **where):
        write_until(answer)
    write_until(None)
    return found


def _orders(path: Path, rows: Mapping[str, Task]) -> Iterator[RegradeOrder]:
    for line in samples(path):
        if (trajectory := _trajectory(line)) is not None:
            sample = line.sample
            task = rows[sample.task_id]
            yield RegradeOrder(job_id=sample.job_id, index=sample.index, task=task, trajectory=trajectory)


def _trajectory(line: Line) -> Trajectory | None:
    """The trajectory of a sample that EVAL has scored."""
    return line.sample.trajectory if line.sample.reward is not None else None


def _left(line: Line, answer: RegradeAnswer | None) -> str | None:
    """Why a sample keeps its reward; None for one that was scored."""
    if answer is not None:
        return answer.error
    return NO_TRAJECTORY if line.sample.reward is not None else NO_REWARD.format(line.sample.outcome)


def _fields(line: Line, answer: RegradeAnswer | None) -> dict[str, Any]:
    """A sample's line with its old reward beside the new one."""
    left, old = _left(line, answer), line.sample.reward
    kept = {**line.fields, "old_reward": old, "not_regraded": left}
    if answer is None or left is not None:
        return kept
    new = {"reward": answer.reward, "reward_parts": answer.parts, "note": answer.note, "evidence": answer.evidence}
    return {**kept, **new}


def _note(found: dict[str, Regraded], line: Line, answer: RegradeAnswer | None) -> None:
    counts = found.setdefault(line.sample.data_source, Regraded())
    old = line.sample.reward
    if old is None:
        return  # nothing of it could change
    left = _left(line, answer)
    if left is not None or answer is None or answer.reward is None:
        counts.left[left or ""] += 1
        return
    counts.up += answer.reward > old
    counts.down += answer.reward < old
    counts.same += answer.reward == old
    counts.before += old
    counts.after += answer.reward


def regraded_text(found: Mapping[str, Regraded], out: Path) -> str:
    """A row for each data source, and why samples keep their rewards."""
    rows = [
        (source, each.scored, each.up, each.down, each.same, sum(each.left.values()), _mean(each.before, each.scored),
         _mean(each.after, each.scored))
        for source, each in sorted(found.items())
    ]  # fmt: skip
    head = ("data source", "scored", "up", "down", "same", "left", "mean before", "mean now")
    reasons = [
        f"{source}: {count} samples keep their reward: {reason}"
        for source, each in sorted(found.items())
        for reason, count in each.left.most_common()
    ]
    return "\n".join([table(head, rows), *reasons, f"all samples are in {out}"])


def _mean(total: float, count: int) -> str:
    return f"{total / count:.4f}" if count else "-"
