"""One node's part of a backend over several nodes: `srun` starts it on each of them.

Its words are the command of the first node and that of the others, each as one word of shell. `{rank}` and `{nodes}`
are filled in here, for srun alone knows them. It never ends well by itself: a backend that lacks a node is none.
"""

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Final

from prorl_mq.process.children import Child, Guard, Program
from prorl_mq.process.crews.crew import Stopping, say

GRACE_S: Final = 15.0  # less than srun is left


def words(first: str, others: str, environ: Mapping[str, str]) -> list[str]:
    """The command of this node.

    >>> words("serve {nodes}", "join --rank {rank}", {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"})
    ['join', '--rank', '1']
    """
    rank, nodes = environ["SLURM_PROCID"], environ["SLURM_NTASKS"]
    chosen = first if rank == "0" or not others else others
    return [word.replace("{rank}", rank).replace("{nodes}", nodes) for word in shlex.split(chosen)]


async def serve(argv: list[str]) -> int:
    guard = Guard(None)
    child = Child(Program(name=f"rank {os.environ['SLURM_PROCID']}", argv=argv), say=say, guard=guard)
    with Stopping() as stopping:
        try:
            await child.start()
            ended = asyncio.create_task(child.wait())
            asked = asyncio.create_task(stopping.asked.wait())
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if ended.done():
                say(child.obituary())
                return ended.result() or 1
            ended.cancel()
        finally:
            await child.stop(GRACE_S)
            await guard.aclose()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(words(sys.argv[1], sys.argv[2], os.environ))))
