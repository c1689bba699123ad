"""Results of an evaluation: what its samples come to, for each task, for each set and in all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.evaluation.paired import PairedTest
from prorl_mq.evaluation.statistics import Estimate

FILE: Final = "results.json"
VERSION: Final = 1


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A scored sample that did not solve its task."""

    job_id: str
    reward: float
    outcome: str
    note: str = ""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one task. `scored` of n have a reward; `failures` has the first few that did not solve it."""

    task_id: str
    digest: str
    n: int
    scored: int
    solved: int
    mean_reward: float | None
    failures: Sequence[Failure] = ()


class Cost(msgspec.Struct, kw_only=True):
    """The cost of all samples, also of those without a result. Tokens are those of each request: a prompt that grows
    by turns counts at each. `cached_tokens` is null where no backend told. Money is null without prices.
    """

    samples: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    backend_seconds: float = 0.0  # in calls to backends
    tool_seconds: float = 0.0  # in calls of tools, most of them in sandboxes
    stage_seconds: Mapping[str, float] = msgspec.field(default_factory=dict)  # in INIT, RUN and EVAL
    money: float | None = None
    currency: str | None = None


class SetResult(msgspec.Struct, frozen=True, kw_only=True):
    """One set, or all. `pass_at` and `pass_all` are by k, over tasks with at least k scored samples.

    `worst` and `best` are pass@1 if every sample without a result had failed, or solved its task.
    """

    name: str
    weight: float
    n: int
    solved_at: float | None  # null for all sets together
    samples: int  # that were wanted
    scored: int
    solved: int
    pass_at: Mapping[int, Estimate]
    pass_all: Mapping[int, Estimate]
    mean_reward: Estimate | None
    worst: float
    best: float
    outcomes: Mapping[str, int]  # of all that ended, also of those without a result
    truncated: Mapping[str, int]  # by the limit that ended it
    tool_calls: int
    tool_failures: int  # calls that were refused or failed
    retried: int  # attempts that infrastructure lost, and that were repeated
    without_result: Mapping[str, int]  # the reason to the number of samples
    turns_mean: float | None
    tokens_mean: float | None
    seconds_mean: float | None
    cost: Cost
    tasks: Sequence[TaskResult] = ()

    @property
    def missing(self) -> int:
        return self.samples - self.scored

    @property
    def solved_share(self) -> Estimate | None:
        return self.pass_at.get(1)


class TaskChange(msgspec.Struct, frozen=True, kw_only=True):
    """A task on which two policies differ: the shares of samples that solved it."""

    set: str
    task_id: str
    ours: float
    other: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation against another one, over the tasks that are the same in both and have samples in both."""

    other: str
    other_pool: str
    compared: int
    left_out: int  # tasks that only one has, whose row or threshold differs, or without a scored sample
    total: PairedTest | None
    sets: Mapping[str, PairedTest]
    changes: Sequence[TaskChange]  # the largest first


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. `versions`: policy versions that sampled tokens, as backends told them. `models`: as backends named
    them when it began; `others`: that answered later, so that samples may be of either.
    """

    suite: str
    pool: str
    run_id: str
    total: SetResult
    sets: Sequence[SetResult]
    backends: Sequence[str]
    versions: Sequence[str]
    models: Sequence[str] = ()
    others: Sequence[str] = ()
    comparison: Comparison | None = None
    schema: int = VERSION


def read(path: Path) -> Results:
    """Results that an evaluation has written: its directory, or the file. Raises `ConfigurationError`."""
    file = path / FILE if path.is_dir() else path
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Results)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}; `prorl-mq evaluate` writes it") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} does not hold results of an evaluation: {error}") from None
    if found.schema > VERSION:
        raise ConfigurationError(f"{file} is of a later release (schema {found.schema}): use that one")
    return found
