"""Another server under the same data: what a restart or a promotion looks like to the scripts."""

from tests.support.queue import Queue


async def another_server(queue: Queue) -> None:
    """A replica for a moment, and a primary again: `master_replid` is new, as after any restart."""
    await queue.command("REPLICAOF", "127.0.0.1", "1")
    await queue.command("REPLICAOF", "NO", "ONE")
