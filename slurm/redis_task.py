"""Redis as a job: started on its data, secured by passwords, and then published.

It cannot be reached before its users have their passwords: until then it listens on a Unix socket of this node alone.
While the job before it serves, it is a replica, to which that one hands over before its limit.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import redis_server
from prorl_mq.process.crews.crew import say
from prorl_mq.settings import Setting, add
from prorl_mq.store.server import administration
from prorl_mq.store.server.connection import OUTAGES
from slurm.address import INTERFACE
from slurm.layout import SHARED
from slurm.servers.queue_server import RedisTask, WarnedStopping

SETTINGS: Final = (
    SHARED,
    INTERFACE,
    Setting("--tls", "TLS: server and clients show certificates of an authority of the deployment's own", alone=True),
    Setting("options", "of the server, after --", nargs="*"),
)
LOCK_LOOK_S: Final = 0.5
FOLLOW_AGAIN_S: Final = 30.0


class ReplicaTask:
    """A replica in the job that comes next: what the one before hands over, it takes."""

    def __init__(self, task: RedisTask, process: "subprocess.Popen[bytes]", directory: Path, primary: str) -> None:
        self._task = task
        self.process = process
        self._directory = directory
        self._primary = primary
        self._complete = False  # it has had all data of that primary
        self.promoted = False

    @classmethod
    async def started(cls, task: RedisTask) -> Self:
        primary = task.primary_url()
        return cls(task, *await task.follow(), primary)

    async def look(self) -> bool:
        """Announces the replica when it has everything, and publishes it when it was made the primary. False when it is
        of no use any more: it has ended, another server than its primary is published, or it is a primary that never
        was a complete replica.
        """
        if self.process.poll() is not None:
            return False
        if self.promoted:
            return True
        if self._task.primary_url() != self._primary:
            return False
        async with self._task.admin() as admin:
            if await administration.is_primary(admin):
                if not self._complete:
                    return False
                self._task.data.adopt(self._directory)
                self._task.publish()
                self.promoted = True
                return True
            await self._task.trusting()
            ready = await administration.has_all(admin, self._primary)
        self._complete = self._complete or ready
        self._task.data.announce(self._task.place if ready else None, self._directory)
        return True

    async def aclose(self) -> None:
        """Ends the server. The copy goes with it, unless it was promoted."""
        with contextlib.suppress(OSError):
            self._task.data.announce(None, self._directory)
        await asyncio.to_thread(redis_server.stop, self.process)
        if not self.promoted:
            await asyncio.to_thread(self._task.data.discard, self._directory)


async def serve(given: argparse.Namespace) -> int:
    """Waits for the data first: the job before this one has them until its time is over, and an earlier run of this job
    may live on, cut off from Slurm. Where locks do not reach from node to node, Slurm says whether that one still runs.
    Meanwhile it is a replica, which the job before may hand its work over to.
    """
    task, said = RedisTask(given), ""
    follower: ReplicaTask | None = None
    again = 0.0
    with WarnedStopping() as stopping:
        try:
            while not stopping.asked.is_set():
                async with task.data.held() as why:
                    if not why:
                        if follower is not None and not follower.promoted:
                            await follower.aclose()
                            follower = None
                        return await task.run(stopping, follower.process if follower else None)
                if why != said:
                    said = why
                    say(why)
                try:
                    if follower is not None and not await follower.look():
                        await follower.aclose()
                        follower = None
                    if follower is None and monotonic() > again:
                        again = monotonic() + FOLLOW_AGAIN_S
                        follower = await ReplicaTask.started(task)
                except (ProrlError, OSError, *OUTAGES) as error:
                    say(f"it does not follow the Redis before it, and will load the data: {error}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOCK_LOOK_S):
                        await stopping.asked.wait()
        finally:
            if follower is not None:
                await follower.aclose()
    return stopping.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm.redis_task", description=__doc__)
    add(parser, SETTINGS, {})
    try:
        return asyncio.run(serve(parser.parse_args(argv)))
    except ProrlError as error:
        print(f"redis task: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1


if __name__ == "__main__":
    sys.exit(main())
