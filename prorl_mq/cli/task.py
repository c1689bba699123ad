"""`prorl-mq task check`: checks a task family's promises, or a file of rows, in a process of the workers' package."""

import argparse
import asyncio
import sys

from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    """The exit code is that of the check."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *_program(given))
    return await process.wait()


def _program(given: argparse.Namespace) -> list[str]:
    if given.rows is not None:
        family = [f"--family={given.module_name}"] if given.module_name else []
        return ["workers.rehearsal.rows", str(given.rows), *family, *(["--json"] if given.json else [])]
    if given.module_name is None:
        raise ConfigurationError("what is to be checked? Name the module of a task family, or a file with --rows")
    place = ["--sandbox", given.sandbox, "--state-dir", str(given.state_dir)]
    return ["workers.rehearsal", given.module_name, str(given.repeat), *place]
