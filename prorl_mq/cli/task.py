"""`prorl-mq task check`: checks the promises of a task family, in a process of the workers' package."""

import argparse
import asyncio
import sys

from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    """The exit code is that of the check."""
    argv = [sys.executable, "-m", "workers.rehearsal", given.module_name, str(given.repeat)]
    argv += ["--sandbox", given.sandbox, "--state-dir", str(given.state_dir)]
    process = await asyncio.create_subprocess_exec(*argv)
    return await process.wait()
