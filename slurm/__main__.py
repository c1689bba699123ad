"""`prorl-slurm`: a deployment of prorl_mq on Slurm, from a TOML file."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process.arguments import Parser, positive
from prorl_mq.process.crews.crew import Stopping, say
from prorl_mq.process.screen.terminal import screens
from prorl_mq.service import payload_files
from prorl_mq.settings import Setting, SubCommand, add_commands
from slurm import commands, demand, spec_file
from slurm.deployed import prepare, store_of, submitting, tasks
from slurm.report import StatusReport, held_back, notes, past, report
from slurm.script import BatchScript, array_script, scripts
from slurm.spec import WATCH, Deployment
from slurm.supervisor import history, places
from slurm.supervisor.watch import Watch
from slurm.tasks import SlurmTask

LOOK_S: Final = 1.0  # between looks at Slurm while waiting for tasks to end
Command = Callable[[Deployment, argparse.Namespace], Coroutine[Any, Any, int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 Slurm or Redis did not do it, 2 a wrong command line or file."""
    with screens():
        return _run(parse(sys.argv[1:] if argv is None else argv))


def _run(given: argparse.Namespace) -> int:
    try:
        deployment = spec_file.read(given.spec, given.profile)
        code = asyncio.run(COMMANDS[given.command](deployment, given))
        sys.stdout.flush()
    except ProrlError as error:
        print(f"prorl-slurm {given.command}: {error}".replace("\n", "\n  "), file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # shared storage is full, or away
        print(f"prorl-slurm {given.command}: {error}", file=sys.stderr)
        return 1
    return code


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="prorl-slurm", description=__doc__)
    add_commands(parser, SUB_COMMANDS, {})
    return parser.parse_args(argv)


async def _render(deployment: Deployment, given: argparse.Namespace) -> int:
    for script in _chosen(deployment, given.names):
        print(f"# ==== {script.name}\n{script.text}")
    return 0


async def _submit(deployment: Deployment, given: argparse.Namespace) -> int:
    chosen = _chosen(deployment, given.names)
    if given.test_only:
        for script in chosen:
            print(f"{script.name}: {await commands.submit(script.text, test_only=True)}")
        return 0
    prepare(deployment)
    async with submitting(deployment):
        found = await tasks(deployment)
        there = Counter(task.job for task in found if task.waiting or task.working)
        places.lock(deployment).reopen(chain=any(script.name == WATCH for script in chosen))
        for script in chosen:
            if not there[script.name]:
                print(f"{script.name}: {await commands.submit(script.text)}", flush=True)
            elif script.name in deployment.arrays:
                print(f"{script.name}: is already there, tasks: {there[script.name]}; `scale --array` adds more")
            else:
                print(f"{script.name}: is already there")
        for task in found:
            if task.held and any(task.job == script.name for script in chosen):
                print(held_back(task))
    return 0


async def _status(deployment: Deployment, given: argparse.Namespace) -> int:
    found, nodes = await tasks(deployment), await commands.nodes()
    seen, trouble, kept, events = None, "", "", history.read(places.directory(deployment.shared))
    try:
        async with store_of(deployment, "viewer", name="prorl-slurm", outage_ms=2_000) as store:
            seen = await demand.read(store)
            kept = await payload_files.told(store.payloads)
    except ProrlError as error:
        trouble = str(error)
    if given.json:
        said = StatusReport(tasks=found, nodes=nodes, redis=seen, trouble=trouble, payloads=kept,
                    notes=notes(deployment, found, nodes, seen), history=events)  # fmt: skip
        print(msgspec.json.encode(said).decode())
    else:
        print(report(deployment, found, nodes, seen, trouble) + (f"\n\npayloads: {kept}" if kept else ""))
        if events:
            print(f"\n{past(events)}")
    return 0


async def _scale(deployment: Deployment, given: argparse.Namespace) -> int:
    if given.array is not None:
        if given.array not in deployment.arrays:
            raise ConfigurationError(f"there is no array {given.array!r}: there are {', '.join(deployment.arrays)}")
        print(f"{given.array}: {await commands.submit(array_script(deployment, given.array, given.add).text)}")
        return 0
    with Stopping() as stopping:
        watch = Watch(lambda: deployment)
        await watch.run(stopping, once=not given.watch)
    return 1 if watch.refused and not given.watch else 0


async def _drain(deployment: Deployment, given: argparse.Namespace) -> int:
    """Withdraws waiting tasks; running ones finish what they have. Without names only workers are drained, and the
    supervisor that is a job ends: it would ask for others.
    """
    deployment = places.whole(deployment)
    if not given.names:
        await _end_watch(deployment)
    found = _tasks_named(deployment, await tasks(deployment), given.names)
    if not given.names:
        found = [task for task in found if task.job in deployment.arrays]
    waiting = [task.id for task in found if task.waiting]
    working = [task.id for task in found if task.working]
    if waiting:
        await commands.cancel(waiting)
    if working:
        await commands.drain(working)
    say(f"{len(waiting)} withdrawn, {len(working)} draining")
    while given.wait and any(task.id in working and not task.failed for task in await _alive(deployment)):
        await asyncio.sleep(LOOK_S)  # Slurm tells nobody
    return 0


async def _end_watch(deployment: Deployment) -> None:
    """Ends the chain of supervisors, and what one by hand would do. One that just acts is waited for."""
    if not places.submitted(deployment):
        return
    try:
        async with places.lock(deployment).taken() as before:
            await _cancel_chain(deployment)
        if before.holder and not before.job:
            say(f"the supervisor {before.holder} asks for nothing until the next `submit`")
    except (OSError, ConfigurationError) as error:
        say(f"the lock of the supervisor cannot be written: {error}; end a `scale --watch` by hand yourself")
        await _cancel_chain(deployment)


async def _cancel_chain(deployment: Deployment) -> None:
    if deployment.watch is None:
        return
    if chain := [task.id for task in await _alive(deployment) if task.job == WATCH]:
        await commands.cancel(chain)
        say(f"the supervisor has been ended: `submit {WATCH}` starts it again")


async def _cancel(deployment: Deployment, given: argparse.Namespace) -> int:
    deployment = places.whole(deployment)
    if not given.names or WATCH in given.names:
        await _end_watch(deployment)
    found = _tasks_named(deployment, await _alive(deployment), given.names)
    workers = [task.id for task in found if task.working and task.job in deployment.arrays]
    others = [task.id for task in found if task.id not in workers]
    if workers:
        with contextlib.suppress(OSError, ConfigurationError):
            places.note_killed(deployment, workers)
        await commands.kill(workers)
    if others:
        await commands.cancel(others)  # Redis and the API close what they have open
    say(f"{len(found)} cancelled; accepted jobs stay in Redis")
    return 0


async def _alive(deployment: Deployment) -> list[SlurmTask]:
    return [task for task in await tasks(deployment) if task.alive]


def _chosen(deployment: Deployment, names: Sequence[str]) -> list[BatchScript]:
    made = scripts(deployment)
    known = [script.name for script in made]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no job {name!r} in the spec: there are {', '.join(known)}")
    return [script for script in made if not names or script.name in names]


def _tasks_named(deployment: Deployment, found: Sequence[SlurmTask], names: Sequence[str]) -> list[SlurmTask]:
    """Tasks by their job's name, or by their own id."""
    known = {script.name for script in scripts(deployment)}
    ids = {task.id for task in found}
    for name in names:
        if name not in known | ids:
            raise ConfigurationError(f"{name!r} is neither a job of the spec nor one of its tasks in Slurm")
    return [task for task in found if not names or task.job in names or task.id in names]


DEPLOYMENT: Final = (
    Setting("--spec", "the deployment's TOML file", type=Path, required=True, metavar="FILE"),
    Setting("--profile", "a profile in place of the spec's own", type=Path, metavar="FILE"),
)
JOBS: Final = Setting("names", "these jobs only", nargs="*", metavar="JOB")
TASKS: Final = replace(JOBS, help="jobs of the spec, or tasks as 17_3; else all", metavar="JOB|TASK")
SUB_COMMANDS: Final = {
    "render": SubCommand("print the scripts that would be submitted", (*DEPLOYMENT, JOBS)),
    "submit": SubCommand(
        "submit the deployment's jobs",
        (*DEPLOYMENT, JOBS, Setting("--test-only", "ask Slurm, submit nothing", alone=True)),
    ),
    "status": SubCommand(
        "what runs, what waits, and what went wrong",
        (*DEPLOYMENT, Setting("--json", "print it as JSON", alone=True)),
    ),
    "scale": SubCommand(
        "adjust the number of tasks to the work",
        (
            *DEPLOYMENT,
            Setting("--watch", "repeat until a signal", alone=True),
            Setting("--array", "ask for further tasks of this array, whatever the demand", metavar="NAME"),
            Setting("--add", "how many of them", type=positive, default=1, metavar="N"),
        ),
    ),
    "drain": SubCommand(
        "let workers finish what they have, and end them",
        (*DEPLOYMENT, TASKS, Setting("--wait", "return when the tasks have ended", alone=True)),
    ),
    "cancel": SubCommand("end tasks immediately; the jobs that they held continue later", (*DEPLOYMENT, TASKS)),
}
COMMANDS: Final[dict[str, Command]] = {
    "render": _render, "submit": _submit, "status": _status, "scale": _scale, "drain": _drain, "cancel": _cancel,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
