"""`prorl-mq replay`: makes a rollout's calls again in a new sandbox, and names the first that answers otherwise."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from prorl_mq.cli.looking import turns_so_far
from prorl_mq.cli.reaching import reach
from prorl_mq.cli.samples.files import row, samples, tasks
from prorl_mq.cli.samples.program import answers
from prorl_mq.cli.tasks_file import assignments
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, ProrlError, ServiceError
from prorl_mq.process import tokenizers
from prorl_mq.schema.messages import Sampling, Task
from prorl_mq.schema.trajectory import Trajectory, TrajectoryError, check
from prorl_mq.schema.turns import LoggedTurn
from prorl_mq.service import turn_pages
from prorl_mq.service.recorded import ReplayAnswer, ReplayOrder, WorldDifference

FAULTS = (ProrlError,)  # 1 says that the worlds differ


async def run(given: argparse.Namespace) -> int:
    """Exit codes: 0 the same, 1 different, 2 it could not be replayed."""
    if given.tokenizer is None:
        raise ConfigurationError("give --tokenizer DIR, the policy's: it says which calls the rollout's tokens are")
    tokenizers.check_directory(given.tokenizer, "--tokenizer")
    sampling = assignments("--sampling", given.sampling, Sampling)
    rows = tasks(given.rows, given.data_source)
    order = _of_file(given, rows, sampling) if given.samples else await _of_service(given, rows, sampling)
    where = {"sandbox": given.sandbox, "state_dir": given.state_dir, "more": [str(given.tokenizer)]}
    [answer] = [each async for each in answers("replay", [order], ReplayAnswer, **where)]
    print(msgspec.json.encode(answer).decode() if given.json else replay_text(answer))
    if answer.error is not None:
        return 2
    return 0 if answer.difference is None else 1


def _of_file(given: argparse.Namespace, rows: Mapping[str, Task], sampling: Sampling) -> ReplayOrder:
    """Raises `ConfigurationError`."""
    path: Path = given.samples
    sample = next((line.sample for line in samples(path) if line.sample.job_id == given.id), None)
    if sample is None:
        raise ConfigurationError(f"{path} has no sample {given.id!r}: its lines name theirs as `job_id`")
    if sample.trajectory is None:
        raise ConfigurationError(f"the sample {given.id!r} of {path} has no trajectory: it ended as {sample.outcome}")
    return _order(given.id, sample.index, row(rows, given.rows, sample.task_id), sample.trajectory, sampling)


async def _of_service(given: argparse.Namespace, rows: Mapping[str, Task], sampling: Sampling) -> ReplayOrder:
    """Of a finished job its trajectory, of one under way its turns so far. Raises `ServiceError`."""
    async with reach(given, patience_s=5) as client:
        status = await client.job(given.id)
        task, index = row(rows, given.rows, status.task_id), int(given.id.rpartition(":")[2])
        try:
            trajectory = await client.trajectory(given.id)
        except ServiceError as error:
            if error.status != 404:
                raise
            turns = await _turns(client, given.id)
            return ReplayOrder(job_id=given.id, index=index, task=task, turns=turns, sampling=sampling)
        return _order(given.id, index, task, trajectory, sampling)


async def _turns(client: AsyncClient, name: str) -> Sequence[LoggedTurn]:
    """Raises `ConfigurationError` where a job has none."""
    found, page = await turns_so_far(client, name)
    if not found:
        raise ConfigurationError(f"{name} has no turn to replay: {page.note or 'its first one is under way'}")
    return found


def _order(name: str, index: int, task: Task, trajectory: Trajectory, sampling: Sampling) -> ReplayOrder:
    """Raises `ConfigurationError` for a rollout whose calls nobody knows, or whose turns and tokens do not fit."""
    try:
        check(trajectory)
    except TrajectoryError as error:
        raise ConfigurationError(f"the trajectory of {name} is damaged: {error}") from None
    if any(turn.client_calls for turn in trajectory.turns):
        raise ConfigurationError(
            f"{name} was a harness's rollout: its calls were made by the harness, and their answers are not recorded"
        )
    cut = trajectory.truncated_by == "time"  # in the middle of something
    artefact = b"" if cut else trajectory.artefact
    turns = turns_of(trajectory)
    return ReplayOrder(job_id=name, index=index, task=task, turns=turns, sampling=sampling, artefact=artefact)


def turns_of(trajectory: Trajectory) -> list[LoggedTurn]:
    """All turns of a trajectory."""
    found: list[LoggedTurn] = []
    while True:
        page = turn_pages.ended(trajectory, after=len(found), limit=turn_pages.AT_ONCE)
        found += page.turns
        if not page.more:
            return found


def replay_text(answer: ReplayAnswer) -> str:
    """The end of a replay for people."""
    if answer.error is not None:
        return f"{answer.job_id} could not be replayed: {answer.error}"
    alike = f"{answer.turns} turns with {answer.calls} calls"
    if answer.difference is None:
        return f"{answer.job_id}: the same. {alike} answer alike in a new sandbox"
    return "\n".join([f"{answer.job_id}: different, after {alike} that answer alike", _difference(answer.difference)])


def _difference(found: WorldDifference) -> str:
    call = "" if found.call is None else f", call {found.call}"
    return "\n".join([f"turn {found.turn}{call}: {found.what}", "- recorded, + replayed", *found.lines])
