"""`prorl-mq view`: samples of a file or an archive in the web page, without a service."""

import argparse
import asyncio

from prorl_mq.cli.becoming import become
from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    path = given.path
    if not await asyncio.to_thread(path.exists):
        raise ConfigurationError(f"{path} is not there: give a file of samples, or the directory of an archive")
    become("api.viewing", str(path), str(given.port), *([str(given.bundle)] if given.bundle else []))
