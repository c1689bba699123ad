"""Burial: a worker that is known to be dead loses its leases at once, and its jobs continue elsewhere.

Only who has seen the process end may say so, as a node's keeper does. A mistake costs an attempt, never a job: the
fence refuses the commits of a worker whose jobs were taken back.
"""

import asyncio
from typing import Final

from prorl_mq.duties.reap import take_back
from prorl_mq.schema.lifecycle import State
from prorl_mq.store import families, jobs, streams
from prorl_mq.store.store import Store

MOST: Final = 1_024  # entries of one stream; what a worker holds beyond them waits for its lease
HELD: Final = frozenset({State.LEASED, State.STOPPING})


async def bury(store: Store, worker: str, started_ms: int) -> int:
    """Takes the jobs back that this start of a worker has leased; how many. Other starts with its name keep theirs."""
    nodes, of_families = await asyncio.gather(streams.lanes(store), families.look(store))
    lanes = [*streams.shared(store.keys), *nodes, *(store.keys.stage(*lane) for lane in of_families)]
    read = await streams.read_by(store, worker, lanes)
    pages = await asyncio.gather(*(streams.left_by(store, stream, worker, limit=MOST) for stream in read))
    refs = [each.ref for page in pages for each in page if each.ref is not None]
    left = [job for job in await jobs.read(store, refs) if job and job.owner == worker and job.state in HELD]
    said = await store.bury(worker, started_ms, [(job.ref, job.token) for job in left]) if left else []
    over = [job for job, word in zip(left, said, strict=True) if word in {"buried", "already"}]
    return await take_back(store, over, leased=True)
