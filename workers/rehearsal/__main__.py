"""Checks a task family: `prorl-mq task check MODULE` starts it.

python -m workers.rehearsal MODULE[:CLASS] [--sandbox KIND] [--state-dir DIR]
"""

import argparse
import asyncio
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from prorl_mq.errors import ConfigurationError
from prorl_mq.settings import Setting, add
from sandbox.errors import SandboxError
from sandbox.isolators.choice import AUTO
from workers.handler import Handler
from workers.node.sandboxes import chosen, own_provider
from workers.rehearsal.check import BrokenPromise, Checking, PromiseLine
from workers.rehearsal.stages import rehearsing
from workers.settings import STATE_DIR, default_node

SETTINGS = (
    Setting("module", "the module of the task family, and its class where it has several", metavar="MODULE[:CLASS]"),
    Setting("--sandbox", "auto, apptainer, bubblewrap, local or none", default=AUTO),
    replace(STATE_DIR, help="directory of data", variable=None),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all promises are kept, 1 one is not, 2 there is nothing to check."""
    parser = argparse.ArgumentParser(prog="prorl-mq task check", description="Tries a task family's promises.")
    add(parser, SETTINGS, {})
    given = parser.parse_args(argv)
    sys.path.insert(0, "")  # a module beside you need not be installed
    try:
        lines = asyncio.run(check(made(given.module), given.sandbox, given.state_dir))
    except (ConfigurationError, SandboxError, BrokenPromise) as error:
        print(f"prorl-mq task check: {error}", file=sys.stderr)
        return 2
    for line in lines:
        print(f"{line.example}  {'kept' if line.fault is None else 'BROKEN':6}  {line.seconds:6.2f} s  {line.promise}")
        if line.fault is not None:
            print(f"   {line.fault}")
    return int(any(line.fault is not None for line in lines))


def made(name: str) -> Handler:
    """The handler that a module has, or that is named in it. Raises `ConfigurationError`."""
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigurationError(f"the module {module_name} cannot be imported: {error}") from error
    found = {name: each for name, each in vars(module).items() if _is_family(each, module_name)}
    wanted = class_name or next(iter(found), "")
    if wanted not in found or (not class_name and len(found) != 1):
        has = ", ".join(found) or "none: a class with data_sources, schema, init, run and eval"
        raise ConfigurationError(f"which task family of {module_name}? Name it as {module_name}:CLASS; there is {has}")
    handler: Handler = found[wanted]()
    return handler


def _is_family(value: Any, module: str) -> bool:
    needed = ("schema", "init", "run", "eval")
    return inspect.isclass(value) and value.__module__ == module and all(hasattr(value, name) for name in needed)


async def check(handler: Handler, kind: str, state_dir: Path) -> list[PromiseLine]:
    """Raises `BrokenPromise` when the family has no examples."""
    kind = await chosen(kind, state_dir) if handler.needs_sandbox else "none"
    provider = None if kind == "none" else own_provider(kind, node=default_node(), state_dir=state_dir)
    try:
        async with rehearsing(provider) as rehearsal:
            return await Checking(handler, rehearsal).lines()
    finally:
        if provider is not None:
            await provider.aclose()
        if close := getattr(handler, "aclose", None):
            await close()


if __name__ == "__main__":
    sys.exit(main())
