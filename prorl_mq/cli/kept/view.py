"""`prorl-mq view`: samples of a file or an archive in the web page, without a service."""

import argparse
import asyncio
import os
import sys
from importlib.util import find_spec

from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)
NEEDED = ("starlette", "uvicorn", "prometheus_client")


async def run(given: argparse.Namespace) -> int:
    """Becomes the program that serves the page, which the command line may not import."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigurationError(f"the page needs {', '.join(missing)}: pip install 'prorl-mq[service]'")
    path = given.path
    if not await asyncio.to_thread(path.exists):
        raise ConfigurationError(f"{path} is not there: give a file of samples, or the directory of an archive")
    argv = [sys.executable, "-P", "-m", "api.viewing", str(path), str(given.port)]
    os.execv(sys.executable, [*argv, *([str(given.bundle)] if given.bundle else [])])  # noqa: S606 - it becomes that
