"""What the time lines of closed groups tell."""

from collections.abc import Sequence
from typing import Any

from prorl_mq.schema.messages import Event, GroupRecord, events


def moves_of(record: GroupRecord) -> list[Event]:
    return [move for job, line in record.timelines.items() for move in events(job, line)]


def throughput(records: Sequence[GroupRecord]) -> dict[str, Any]:
    """Jobs a second, from the first claim to the last result."""
    moves = [move for record in records for move in moves_of(record)]
    first = min(move.ms for move in moves if move.event == "claim")
    ended = [move.ms for move in moves if move.event == "finish"]
    return {"jobs": len(ended), "jobs_s": round(1000 * len(ended) / (max(ended) - first), 3)}
