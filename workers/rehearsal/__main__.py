"""Checks a task family, or tasks in Harbor's format: `prorl-mq task check` starts it.

python -m workers.rehearsal MODULE[:CLASS]|TASKS [REPEAT [FOUND]] [--sandbox KIND] [--state-dir DIR]
"""

import argparse
import asyncio
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.arguments import positive
from prorl_mq.service.recorded import Flakiness
from prorl_mq.settings import Setting, add
from sandbox.errors import SandboxError
from workers.handler import Handler
from workers.handlers.harbor.dataset import NoTasks, directories
from workers.rehearsal import harbor
from workers.rehearsal.check import BrokenPromise, Checking, PromiseLine
from workers.rehearsal.place import SANDBOX, provider_at
from workers.rehearsal.repeats import Repeated, reason, repeated, told
from workers.rehearsal.stages import rehearsing
from workers.settings import STATE_DIR

SETTINGS = (
    Setting(
        "module",
        "the module of the task family, and its class where it has several; or a directory of tasks in Harbor's format",
        metavar="MODULE[:CLASS]|TASKS",
    ),
    Setting("repeat", "how often each example is run", type=positive, nargs="?", default=1, metavar="REPEAT"),
    Setting("found", "file for what was flaky, for `prorl-mq task quarantine`", type=Path, nargs="?", metavar="FOUND"),
    SANDBOX,
    replace(STATE_DIR, help="directory of data", variable=None),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all promises are kept, 1 one is not, or an example is flaky, 2 there is nothing to check."""
    parser = argparse.ArgumentParser(prog="prorl-mq task check", description="Tries a task family's promises.")
    add(parser, SETTINGS, {})
    given = parser.parse_args(argv)
    sys.path.insert(0, "")  # a module beside you need not be installed
    try:
        if _are_tasks(given.module):
            return asyncio.run(check_tasks(given.module, given.sandbox, given.state_dir))
        handler = made(given.module)
        lines, found = asyncio.run(check(handler, given.sandbox, given.state_dir, repeat=given.repeat))
    except (ConfigurationError, SandboxError, BrokenPromise, NoTasks) as error:
        print(f"prorl-mq task check: {error}", file=sys.stderr)
        return 2
    for line in lines:
        print(f"{line.example}  {'kept' if line.fault is None else 'BROKEN':6}  {line.seconds:6.2f} s  {line.promise}")
        if line.fault is not None:
            print(f"   {line.fault}")
    if found:
        print(f"\n{told(found)}")
    if given.found is not None:
        why = next((reason(each) for each in found if each.flaky), "")
        given.found.write_bytes(msgspec.json.encode(Flakiness(list(handler.data_sources), why)))
    return int(any(line.fault is not None for line in lines) or any(each.flaky for each in found))


def made(name: str) -> Handler:
    """The handler that a module has, or that is named in it. Raises `ConfigurationError`."""
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:  # the others: of what is no name, such as ./tasks
        hint = ": no directory in it has a task.toml" if Path(module_name).is_dir() else f": {error}"
        raise ConfigurationError(f"the module {module_name} cannot be imported{hint}") from error
    found = {name: each for name, each in vars(module).items() if _is_family(each, module_name)}
    wanted = class_name or next(iter(found), "")
    if wanted not in found or (not class_name and len(found) != 1):
        has = ", ".join(found) or "none: a class with data_sources, schema, init, run and eval"
        raise ConfigurationError(f"which task family of {module_name}? Name it as {module_name}:CLASS; there is {has}")
    handler: Handler = found[wanted]()
    return handler


def _are_tasks(source: str) -> bool:
    path = Path(source)
    if path.suffix == ".jsonl" and path.is_file():
        raise ConfigurationError(f"{path} holds rows: check them with --rows {path}")
    return source.partition(":")[0].endswith(".json") or (
        path.is_dir() and any(next(path.glob(each), None) for each in ("task.toml", "*/task.toml"))
    )


def _is_family(value: Any, module: str) -> bool:
    needed = ("schema", "init", "run", "eval")
    return inspect.isclass(value) and value.__module__ == module and all(hasattr(value, name) for name in needed)


async def check_tasks(source: str, kind: str, state_dir: Path) -> int:
    """The exit code: 0 if each task's solution earns 1 and doing nothing 0. Raises `NoTasks`, `SandboxError`."""
    faults = 0
    async with provider_at(kind, state_dir) as provider, rehearsing(provider) as rehearsal:
        async for line in harbor.checked(rehearsal, await asyncio.to_thread(directories, source)):
            faults += line.fault is not None
            reward = "-" if line.reward is None else f"{line.reward:g}"
            print(f"{line.task}  {line.agent:6}  {reward:>4}  {line.seconds:6.2f} s  {line.fault or ''}", flush=True)
    return int(faults > 0)


async def check(
    handler: Handler, kind: str, state_dir: Path, *, repeat: int = 1
) -> tuple[list[PromiseLine], list[Repeated]]:
    """The promises, and what differed between repeats. Raises `BrokenPromise` when the family has no examples."""
    try:
        async with (
            provider_at(kind, state_dir, needed=handler.needs_sandbox) as provider,
            rehearsing(provider) as rehearsal,
        ):
            lines = await Checking(handler, rehearsal).lines()
            return lines, await repeated(handler, rehearsal, repeat) if repeat > 1 else []
    finally:
        if close := getattr(handler, "aclose", None):
            await close()


if __name__ == "__main__":
    sys.exit(main())
