"""`prorl-mq task`: checks task families and rows, in a process of the workers' package; keeps the quarantine."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from prorl_mq.cli.looking import service_redis
from prorl_mq.errors import ConfigurationError
from prorl_mq.service.recorded import Flakiness
from prorl_mq.store import families
from prorl_mq.store.store import Store

FAULTS = (ConfigurationError,)
WHY_CHARS = 300


async def run(given: argparse.Namespace) -> int:
    """The exit code is that of the check."""
    if given.action == "release":
        async with service_redis(given) as store:
            print(await _released(store, given.names, as_json=given.json))
        return 0
    if given.action == "check":
        return await _checked(_program(given))
    if given.rows is not None or given.repeat < 2:
        raise ConfigurationError("`task quarantine` takes a task family and --repeat K, where K is 2 or more")
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "found.json"
        code = await _checked(_program(given, str(file)))
        if not file.exists():
            print("nothing was put into quarantine or released: no examples of a task family were repeated")
            return code
        async with service_redis(given) as store:
            print(await _judged(store, msgspec.json.decode(file.read_bytes(), type=Flakiness)))
    return code


async def _judged(store: Store, found: Flakiness) -> str:
    """Puts a flaky family into quarantine, or releases one that is not flaky any more; what was done."""
    names = ", ".join(found.data_sources)
    if found.why:
        await families.quarantine(store, dict.fromkeys(found.data_sources, found.why[:WHY_CHARS]))
        return f"{names}: in quarantine, no group of it begins until it is released (`prorl-mq task release`)"
    released = await families.release(store, found.data_sources)
    return f"{', '.join(released)}: released from quarantine" if released else f"{names}: not in quarantine"


async def _released(store: Store, names: Sequence[str], *, as_json: bool) -> str:
    """Without names, those in quarantine, by name with the reason."""
    held = await families.quarantined(store)
    if unknown := [each for each in names if each not in held]:
        raise ConfigurationError(f"not in quarantine: {', '.join(unknown)}; there are: {', '.join(held) or 'none'}")
    if names:
        return f"released: {', '.join(await families.release(store, names))}"
    if as_json:
        return msgspec.json.encode(held).decode()
    return "\n".join(f"{name}: {why}" for name, why in held.items()) or "no task family is in quarantine"


async def _checked(program: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *program)
    return await process.wait()


def _program(given: argparse.Namespace, *found: str) -> list[str]:
    if len(given.names) > 1:
        raise ConfigurationError(f"one at a time: {given.names[0]} and {given.names[1]} are named")
    if given.rows is not None:
        family = [f"--family={name}" for name in given.names]
        return ["workers.rehearsal.rows", str(given.rows), *family, *(["--json"] if given.json else [])]
    if not given.names:
        raise ConfigurationError("what is to be checked? Name the module of a task family, or a file with --rows")
    place = ["--sandbox", given.sandbox, "--state-dir", str(given.state_dir)]
    return ["workers.rehearsal", given.names[0], str(given.repeat), *found, *place]
