"""Settlement: a group whose last open job has ended gets its verdict, once."""

from collections.abc import Mapping
from typing import Any

import msgspec

from prorl_mq import groups
from prorl_mq.broker import Broker
from prorl_mq.codec import decode, encode
from prorl_mq.ids import BatchRef, GroupRef, public
from prorl_mq.messages import Purpose, SampleRecord, Verdict
from prorl_mq.moves import GroupSpec, Settlement

AT_ONCE = 32
IDLE_BLOCK_MS = 1_000


class GroupRecordWire(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`messages.GroupRecord` with its packed parts left as they are."""

    run_id: str
    batch_id: str
    group_id: str
    task_id: str
    data_source: str
    verdict: Verdict
    samples: list[msgspec.Raw]
    n: int
    refills: int = 0
    reason: str | None = None
    timelines: Mapping[str, str] = {}
    purpose: Purpose = Purpose.TRAIN
    schema: int = 1


class Settling:
    """The settling loop. `linger_ms`: how long an ended job still answers `already` to a late commit."""

    def __init__(self, broker: Broker, *, linger_ms: int) -> None:
        self.broker = broker
        self.linger_ms = linger_ms

    async def turn(self) -> float:
        """Settles what is due, oldest first; blocks while nothing is."""
        broker, keys = self.broker, self.broker.keys
        reply = await broker.wait_read("XREAD", "COUNT", AT_ONCE, "BLOCK", IDLE_BLOCK_MS, "STREAMS", keys.due, "0")
        if not reply:
            return 0.0
        due = [(entry.decode(), GroupRef(fields[1].decode())) for entry, fields in reply[0][1]]
        reads: list[tuple[str | int, ...]] = []
        for _, ref in due:
            reads += (("HGETALL", keys.group(ref)), ("GET", keys.open(ref)))
        found = await broker.read_many(reads)
        for place, (entry, ref) in enumerate(due):
            verdict = settlement(entry, ref, found[2 * place], found[2 * place + 1])
            await broker.settle(verdict, linger_ms=self.linger_ms)
        return 0.0


def settlement(entry: str, ref: GroupRef, row: list[bytes], packed_spec: bytes | None) -> Settlement:
    """The verdict on a group as it lies in Redis. A group that is gone or published gives one that does nothing."""
    fields: dict[str, Any] = {k.decode(): v for k, v in zip(row[::2], row[1::2], strict=True)}
    if packed_spec is None or "n" not in fields:
        return Settlement(entry, ref, BatchRef(""), 0)
    spec = decode(packed_spec, GroupSpec)
    jobs, refills = int(fields["next"]), int(fields["refills"])
    packed = {index: fields[f"s:{index}"] for index in range(jobs) if f"s:{index}" in fields}
    samples = [decode(each, SampleRecord) for each in packed.values()]
    decision = groups.decide(
        samples, n=spec.n, refills=refills, max_refills=spec.max_refills, withdrawn="withdrawn" in fields
    )
    batch = fields["batch"].decode()
    if decision.verdict is None:
        return Settlement(entry, ref, batch, jobs, wanted=decision.wanted)
    marked = groups.replaced(samples, spec.n) if jobs > spec.n else samples
    raws = [
        msgspec.Raw(packed[old.index] if new is old else encode(new)) for old, new in zip(samples, marked, strict=True)
    ]
    _, run_id, group_id = ref.split(":")
    record = GroupRecordWire(
        run_id=run_id,
        batch_id=spec.batch,
        group_id=group_id,
        task_id=spec.task_id,
        data_source=spec.data_source,
        verdict=decision.verdict,
        samples=raws,
        n=spec.n,
        refills=refills,
        reason=decision.reason,
        timelines={public(f"{ref}:{index}"): fields.get(f"t:{index}", b"").decode() for index in packed},
        purpose=spec.purpose,
    )
    data = encode(record)
    held = len(data) + sum(sample.trajectory_bytes for sample in samples)
    return Settlement(entry, ref, batch, jobs, verdict=decision.verdict, record=data, bytes=held)
