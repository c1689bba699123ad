"""Jobs whose stages last longer than one batch of the projector: every change of theirs is written by itself."""

import asyncio
from collections.abc import Callable

from prorl_mq.schema.codec import encode
from prorl_mq.schema.ids import JobRef, RunRef, batch_ref, group_ref, job_parts, public
from prorl_mq.schema.items import Advance, Finish, GroupSpec, Held, NewBatch, NewGroup, Wanted
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Sampling, Stage
from prorl_mq.store import streams
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store, batched

RUN = RunRef("default:slow")
GROUP = 8
LONG_MS = 3_600_000


async def run(settings: RedisSettings, jobs: int, shown: Callable[[], None]) -> None:
    """All jobs make each step together; `shown` waits until the mirror has it."""
    redis = connect(settings)
    try:
        store = Store(redis, Keys(settings.namespace), name="slow")
        await streams.ensure(redis, streams.shared(store.keys))
        await _admit(store, jobs // GROUP)
        await asyncio.to_thread(shown)
        for stage in Stage:
            held = await _claim(store, stage, jobs)
            await asyncio.to_thread(shown)
            for chunk in batched(held):
                if stage is Stage.EVAL:
                    await store.finish([Finish(each, Outcome.COMPLETED, _record(each.ref)) for each in chunk])
                else:
                    await store.advance([Advance(each, None, b"") for each in chunk])
            await asyncio.to_thread(shown)
    finally:
        await redis.aclose()


async def _admit(store: Store, groups: int) -> None:
    batch = batch_ref(RUN, "b")
    spec = GroupSpec(
        batch="b", task_id="task", data_source="bench", payload={}, n=GROUP, max_refills=0, sampling=Sampling(),
        limits=Limits(), pool="policy",
    )  # fmt: skip
    packed = encode(spec)
    for chunk in batched([group_ref(RUN, f"g{number}") for number in range(groups)]):
        new = [NewGroup(ref, "digest", GROUP, LONG_MS, packed, b"") for ref in chunk]
        await store.submit(NewBatch(RUN, batch, "digest", groups, groups * GROUP), new)
        await store.admit(RUN, [Wanted(ref, 0, GROUP, LONG_MS) for ref in chunk])


async def _claim(store: Store, stage: Stage, jobs: int) -> list[Held]:
    stream, held = store.keys.stage(stage), list[Held]()
    while len(held) < jobs:
        found = await streams.read(store.redis, "slow", [stream], count=64, block_ms=None)
        entries = found[stream]
        claims = await store.claim(stage, None, entries, [LONG_MS] * len(entries), LONG_MS)
        pairs = zip(entries, claims, strict=True)
        held += [Held(entry.ref, claim.token, entry.entry, stage, None, "policy") for entry, claim in pairs]
    return held


def _record(ref: JobRef) -> bytes:
    index = job_parts(ref).sample
    return encode(SampleRecord(job_id=public(ref), index=index, outcome=Outcome.COMPLETED, reward=1.0))
