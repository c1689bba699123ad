"""`prorl-mq router`: several services as one, each of which is a cell."""

import argparse

from prorl_mq.cli.becoming import become
from prorl_mq.errors import ConfigurationError

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    become("api.cells", str(given.path), str(given.port))
