"""`prorl-mq logs`: a job's events and its lines in the service's logs, by time."""

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from prorl_mq.cli.reaching import reach
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.screen.tables import json_text
from prorl_mq.schema.timeline import Timeline

FAULTS = (ConfigurationError,)
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3})")


async def run(given: argparse.Namespace) -> int:
    async with reach(given, patience_s=5) as client:
        found = await client.timeline(given.id)
    lines = sorted([*told(found), *logged(given.id, (given.state_dir / "logs").glob("*.log"))])
    print(json_text(lines) if given.json else "\n".join(lines))
    return 0


def told(found: Timeline) -> Iterator[str]:
    """A line for each event."""
    for change in found.changes:
        words = (_utc(change.ms / 1000), "event", change.event, change.stage, change.worker, change.detail)
        yield " ".join(word for word in words if word)


def logged(job: str, files: Iterable[Path]) -> Iterator[str]:
    """Lines that name the job, of processes whose logs are on this machine."""
    names = re.compile(rf"(?<![\w.\-]){re.escape(job)}(?![\w.\-])")
    for path in files:
        with path.open(errors="replace") as lines:
            for line in lines:
                if names.search(line):
                    yield _line(path.stem, line.rstrip("\n"))


def _line(process: str, line: str) -> str:
    """Text lines have the time of the machine, JSON lines are in UTC: all become UTC, to stand in order."""
    if line.startswith("{"):
        try:
            about = json.loads(line)
            stamp = datetime.fromisoformat(about["time"]).timestamp()
        except (ValueError, KeyError, TypeError):
            return f"{process} {line}"
        return f"{_utc(stamp)} {process} {about['level']} {about['logger']} {about['message']}"
    found = STAMP.match(line)
    if found is None:
        return f"{process} {line}"
    stamp = datetime.fromisoformat(f"{found[1]} {found[2]}.{found[3]}").astimezone().timestamp()
    return f"{_utc(stamp)} {process}{line[found.end() :]}"


def _utc(stamp: float) -> str:
    return datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
