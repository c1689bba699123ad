"""The supervisor as a job, in a chain: while one holds the lock, the next one waits in Slurm or stands by."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from prorl_mq.process.crews.crew import Stopping
from prorl_mq.settings import add
from slurm.layout import SHARED
from slurm.supervisor import places
from slurm.supervisor.watch import Watch

SETTINGS: Final = (SHARED,)


async def serve(given: argparse.Namespace) -> int:
    with Stopping() as stopping:
        watch = Watch(lambda: places.known(given.shared), job=os.environ.get("SLURM_JOB_ID", ""))
        await watch.run(stopping, once=False)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm.supervisor.task", description=__doc__)
    add(parser, SETTINGS, {})
    return asyncio.run(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
