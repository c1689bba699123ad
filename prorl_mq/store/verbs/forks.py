"""The verb that forks a job, and what the jobs of a forked group read. It may be sent twice."""

from redis.exceptions import OutOfMemoryError

from prorl_mq.errors import OverQuota
from prorl_mq.rules import order
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, group_of, public
from prorl_mq.schema.items import NewBatch, NewFork, NewGroup
from prorl_mq.schema.turns import Inherited
from prorl_mq.store.core import Core, Raw, text
from prorl_mq.store.verbs.groups import BATCHES_CAP


class ForkVerbs(Core):
    """A forked group is an ordinary one with turns in front, which all its jobs share."""

    async def fork(self, batch: NewBatch, group: NewGroup, fork: NewFork) -> str:
        """Stores a forked group: `forked`, `already`, `conflict` (the name is another's), or `moved` (look again).

        Raises `OverQuota` when Redis has no memory left.
        """
        keys, run, parent = self.keys, batch.run, group_of(fork.parent)
        names = [keys.batch(batch.ref), keys.backlog(run), keys.runs, keys.run(run), keys.admit_bell]
        names += (keys.open_groups(run), keys.batches(run), keys.open_groups(batch.ref))
        names += (keys.group(group.ref), keys.open(group.ref), keys.sealed(group.ref), keys.fork(group.ref))
        job = keys.job(fork.parent)
        names += (keys.open(parent), keys.sealed(parent), job, fork.lender or job)
        raw = Raw()
        arguments = {
            "digest": batch.digest, "run": run, "batch": batch.ref, "ref": group.ref, "n": group.n,
            "total_ms": group.total_ms, "family": group.family, "base": order.base(batch.purpose),
            "ahead_us": order.ahead_us(batch.priority), "batches_cap": BATCHES_CAP, "open": raw.put(group.open),
            "sealed": raw.put(group.sealed), "turns": raw.put(fork.base), "saved": raw.put(fork.saved),
            "saved_in": fork.saved_in, "copies": fork.sealed_of is not None,
            "lends": fork.lender == job and fork.saved_in != "", "images": group.images,
        }  # fmt: skip
        try:
            return text(await self.call("fork", names, arguments, *raw, of_run=run))
        except OutOfMemoryError:
            message = f"Redis is full and takes no fork of job {public(fork.parent)!r}: acknowledge results"
            raise OverQuota(message, retry_after_ms=2000) from None

    async def inherited(self, group: GroupRef) -> Inherited | None:
        """The turns that a group's jobs begin with; None where it was not forked, or has closed."""
        packed = await self.read("HGET", self.keys.fork(group), "turns")
        return decode(packed, Inherited) if packed else None

    async def lent(self, group: GroupRef) -> tuple[bytes, str]:
        """The checkpoint that they begin with, as `jobs.saved` gives that of a job."""
        saved, file = await self.read("HMGET", self.keys.fork(group), "saved", "saved_in")
        return saved or b"", (file or b"").decode()
