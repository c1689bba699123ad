"""Admission: groups move from the runs' backlogs onto the first stage, by deficit round robin over the runs.

The first stage is kept at no more than twice its live slots, so that a new run or a refill never waits behind a
queue that is longer than the next few moments' work.
"""

from collections.abc import Mapping

from prorl_mq.broker import Broker
from prorl_mq.clock import monotonic
from prorl_mq.ids import GroupRef, RunRef
from prorl_mq.messages import Stage
from prorl_mq.moves import Wanted
from prorl_mq.workers_seen import living, slots

HEADS = 32  # groups of one run looked at in one turn
QUANTUM = 8  # samples that a run of weight 1 may admit in one round
LOOK_AGAIN_S = 0.5  # how long the count of live slots is good for
IDLE_BLOCK_MS = 1_000
FULL_WAIT_S = 0.004
FULL_WAIT_MAX_S = 0.1


class Admission:
    """The admitting loop's memory: deficits, and the last count of slots. Losing it costs fairness for one round."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._deficits: dict[RunRef, float] = {}
        self._slots = 0
        self._slots_until = 0.0
        self._full_wait_s = FULL_WAIT_S
        self._group_size = 1.0  # of the groups seen last

    async def turn(self) -> float:
        """Fills the first stage up. Waits for the bell when there is nothing to admit."""
        broker, keys = self.broker, self.broker.keys
        await self._count_slots()
        depth, runs = await broker.read_many([("XLEN", keys.stage(Stage.INIT)), ("ZRANGE", keys.runs, 0, -1)])
        room = 2 * self._slots - int(depth)
        if room <= 0:
            self._full_wait_s = min(FULL_WAIT_MAX_S, 2 * self._full_wait_s)
            return self._full_wait_s if self._slots else LOOK_AGAIN_S
        heads = await self._heads([RunRef(run.decode()) for run in runs], room)
        if not heads:
            await broker.wait_read("BLPOP", keys.admit_bell, IDLE_BLOCK_MS / 1000)
            return 0.0
        for run, wanted in share(heads, self._deficits, room).items():
            for at in range(0, len(wanted), HEADS):
                await broker.admit(run, wanted[at : at + HEADS])
        self._full_wait_s = FULL_WAIT_S
        return FULL_WAIT_S if room < self._slots else 0.0

    async def _count_slots(self) -> None:
        if monotonic() > self._slots_until:
            self._slots = slots(await living(self.broker), Stage.INIT)
            self._slots_until = monotonic() + LOOK_AGAIN_S

    async def _heads(self, runs: list[RunRef], room: int) -> dict[RunRef, list[Wanted]]:
        """The first groups of every run's backlog: about as many as fit into `room` if they are like the last ones."""
        broker, keys = self.broker, self.broker.keys
        last = min(HEADS, 1 + int(room / self._group_size)) - 1
        fronts = await broker.read_many([("ZRANGE", keys.backlog(run), 0, last) for run in runs])
        refs = [(run, GroupRef(ref.decode())) for run, front in zip(runs, fronts, strict=True) for ref in front]
        fields = await broker.read_many([("HMGET", keys.group(ref), "next", "wanted", "total_ms") for _, ref in refs])
        heads: dict[RunRef, list[Wanted]] = {}
        for (run, ref), (first, wanted, total_ms) in zip(refs, fields, strict=True):
            if first is not None:
                heads.setdefault(run, []).append(Wanted(ref, int(first), int(wanted), int(total_ms)))
        sizes = [group.wanted for groups in heads.values() for group in groups]
        self._group_size = max(1.0, sum(sizes) / len(sizes)) if sizes else self._group_size
        return heads


def share(
    heads: Mapping[RunRef, list[Wanted]],
    deficits: dict[RunRef, float],
    room: int,
    weights: Mapping[RunRef, float] | None = None,
) -> dict[RunRef, list[Wanted]]:
    """Deficit round robin: which groups to admit into `room` samples. `deficits` is kept between calls.

    The order of `deficits` is the order of the round: the first run is served until it cannot pay for its next group,
    then it is credited and goes to the end. A call that runs out of room leaves the round where it is, so that no run
    starves however small the calls are. A group may exceed the room that is left by its own size, so that a large
    group is never starved by small ones.
    """
    queues = {run: list(groups) for run, groups in heads.items() if groups}
    for run in [run for run in deficits if run not in queues]:
        del deficits[run]  # an idle run saves nothing up
    for run in queues:
        deficits.setdefault(run, 0.0)
    chosen: dict[RunRef, list[Wanted]] = {}
    ring = [run for run in deficits if queues[run]]
    while room > 0 and ring:
        run = ring[0]
        queue, credit = queues[run], deficits[run]
        while queue and room > 0 and queue[0].wanted <= credit:
            group = queue.pop(0)
            credit -= group.wanted
            room -= group.wanted
            chosen.setdefault(run, []).append(group)
        deficits[run] = credit
        if queue and queue[0].wanted <= credit:
            break  # out of room in the middle of its turn
        ring.pop(0)
        del deficits[run]
        if queue:
            ring.append(run)
            deficits[run] = credit + QUANTUM * (weights or {}).get(run, 1.0)
        else:
            deficits[run] = 0.0
    return chosen
