"""Samples of an evaluation, as its file of samples has them, without their tokens."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.evaluation.definition import Definition, Submitted
from prorl_mq.schema.messages import ErrorInfo, Outcome

FILE: Final = "samples.jsonl"


class KeptCall(msgspec.Struct, frozen=True):
    """A tool call, of which only its success and time count."""

    ok: bool = True
    refused: bool = False
    seconds: float = 0.0


class KeptTurn(msgspec.Struct, frozen=True):
    """The cost of a turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    llm_seconds: float = 0.0
    tool_calls: Sequence[KeptCall] = ()


class KeptSpan(msgspec.Struct, frozen=True):
    """The backend that sampled tokens, and the version of its weights."""

    backend: str = ""
    version: tuple[str, str] | None = None


class KeptSegment(msgspec.Struct, frozen=True):
    """A segment without its tokens."""

    spans: Sequence[KeptSpan] = ()


class KeptTrajectory(msgspec.Struct, frozen=True):
    """A trajectory without its tokens."""

    turns: Sequence[KeptTurn] = ()
    segments: Sequence[KeptSegment] = ()


class KeptSample(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file."""

    group_id: str
    job_id: str
    index: int
    task_id: str
    outcome: Outcome
    reward: float | None = None
    note: str | None = None
    truncated_by: str | None = None
    turns: int = 0
    seconds: Mapping[str, float] = {}
    error: ErrorInfo | None = None
    failed: Sequence[Any] = ()
    trajectory: KeptTrajectory | None = None


class PlacedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample with its set and the place of its task there."""

    set: str
    task: int
    sample: KeptSample


def read(directory: Path, kept: Definition) -> Iterator[PlacedSample]:
    """The samples of a directory, each once. A half line, which a kill may leave, is none.

    Raises `ConfigurationError`.
    """
    places = groups(kept.submitted)
    seen: set[str] = set()
    path = directory / FILE
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                sample = _decoded(path, number, line)
                if sample.group_id in places and sample.job_id not in seen:
                    seen.add(sample.job_id)
                    name, task = places[sample.group_id]
                    yield PlacedSample(set=name, task=task, sample=sample)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def groups(submitted: Sequence[Submitted]) -> dict[str, tuple[str, int]]:
    """Group id → set, and place of the task in it."""
    return {name: (each.set, place) for each in submitted for name, (place, _) in each.groups.items()}


def _decoded(path: Path, number: int, line: bytes) -> KeptSample:
    try:
        return msgspec.json.decode(line, type=KeptSample)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}:{number} is not a sample of an evaluation: {error}") from None
