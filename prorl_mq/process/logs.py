"""Log lines: an event name and fields. What is said while a job is worked on names the job.

Text by default; `PRORL_LOG_FORMAT=json` makes each line one JSON object. `PRORL_LOG` is the level.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

from prorl_mq.process.screen.terminal import one_line, visible
from prorl_mq.schema.ids import JobRef, job_parts, public

TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_JOB: ContextVar[tuple[JobRef, int, str]] = ContextVar("the job that is worked on")


def about(job: JobRef, attempt: int, stage: str) -> None:
    """From here on, in this task and in those it starts, lines are about this job."""
    _JOB.set((job, attempt, stage))


def _fields() -> Mapping[str, str | int]:
    """Of the job that is worked on, if there is one."""
    if (about := _JOB.get(None)) is None:
        return {}
    ref, attempt, stage = about
    parts = job_parts(ref)
    return {"run": parts.run, "group": parts.group, "job": public(ref), "attempt": attempt, "stage": stage}


def configure(environ: Mapping[str, str]) -> None:
    """To standard error. Once, when a process starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if environ.get("PRORL_LOG_FORMAT") == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=environ.get("PRORL_LOG", "WARNING").upper(), handlers=[handler])
    logging.getLogger("httpcore").setLevel(logging.INFO)  # its DEBUG quotes answers, which may repeat an API key


class TextFormatter(logging.Formatter):
    """A line for people."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        fields = "".join(f" {name}={value}" for name, value in _fields().items())
        return one_line(super().formatMessage(record) + fields)


class Json(logging.Formatter):
    """A line for programs."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return visible(json.dumps(line, ensure_ascii=False))
