"""Admission: groups move from the runs' backlogs onto the first stage, shared out by `sharing`.

The first stage is kept at no more than twice its live slots, so that a new run or a refill never waits behind a
queue that is longer than the next few moments' work.
"""

from prorl_mq import backlog, run_settings, runs, sharing
from prorl_mq.backlog import Heads
from prorl_mq.broker import Broker
from prorl_mq.clock import monotonic
from prorl_mq.ids import RunRef, TenantId, run_ref
from prorl_mq.messages import Purpose, Stage
from prorl_mq.moves import Wanted
from prorl_mq.quotas import allowed
from prorl_mq.run_settings import Book
from prorl_mq.sharing import Path
from prorl_mq.workers_seen import living, slots

HEADS = 32  # groups of one run and purpose looked at in one turn
LOOK_AGAIN_S = 0.5  # how long the count of live slots and the settings are good for
IDLE_BLOCK_S = 1.0
HELD_BLOCK_S = 0.1  # while quotas hold everything back that waits: nothing rings when one frees
FULL_WAIT_S = 0.004
FULL_WAIT_MAX_S = 0.1


class Admission:
    """The admitting loop's memory: what each has had, and the last look at slots and settings.

    Losing it costs fairness for one group each.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._had: dict[Path, float] = {}
        self._slots = 0
        self._book = Book({}, {})
        self._look_at = 0.0
        self._full_wait_s = FULL_WAIT_S
        self._group_size = 1.0  # of the groups seen last

    async def turn(self) -> float:
        """Fills the first stage up. Waits for the bell when there is nothing to admit."""
        broker, keys = self.broker, self.broker.keys
        await self._look()
        depth, known = await broker.read_many([("XLEN", keys.stage(Stage.INIT)), ("ZRANGE", keys.runs, 0, -1)])
        room = 2 * self._slots - int(depth)
        if room <= 0:
            self._full_wait_s = min(FULL_WAIT_MAX_S, 2 * self._full_wait_s)
            return self._full_wait_s if self._slots else LOOK_AGAIN_S
        heads = await self._heads([RunRef(run.decode()) for run in known], room)
        admitted = await self._admit(heads, room) if heads else False
        if not admitted:
            await broker.wait_read("BLPOP", keys.admit_bell, HELD_BLOCK_S if heads else IDLE_BLOCK_S)
            return 0.0
        self._full_wait_s = FULL_WAIT_S
        return FULL_WAIT_S if room < self._slots else 0.0

    async def _look(self) -> None:
        if monotonic() > self._look_at:
            self._slots = slots(await living(self.broker), Stage.INIT)
            self._book = await run_settings.book(self.broker)
            self._look_at = monotonic() + LOOK_AGAIN_S

    async def _heads(self, known: list[RunRef], room: int) -> Heads:
        """Of each run and purpose about as many groups as fit into `room`, if they are like the last ones."""
        heads = await backlog.heads(self.broker, known, min(HEADS, 1 + int(room / self._group_size)))
        sizes = [group.wanted for lines in heads.values() for groups in lines.values() for group in groups]
        self._group_size = max(1.0, sum(sizes) / len(sizes)) if sizes else self._group_size
        return heads

    async def _admit(self, heads: Heads, room: int) -> bool:
        """Whether any group could go."""
        quotas = allowed(self._book, await runs.usage(self.broker, list(heads)))
        lines = {(*run.split(":"), purpose): groups for run, each in heads.items() for purpose, groups in each.items()}
        shared = sharing.share(lines, self._had, room, weights(self._book, heads), quotas)
        chosen: dict[RunRef, list[Wanted]] = {}
        for (tenant, run, _), groups in shared.items():
            chosen.setdefault(run_ref(tenant, run), []).extend(groups)
        for run, groups in chosen.items():
            for at in range(0, len(groups), HEADS):
                await self.broker.admit(run, groups[at : at + HEADS])
        return bool(chosen)


def weights(book: Book, heads: Heads) -> dict[Path, float]:
    """Of the tenants, of their runs, and of the two purposes of a run."""
    found: dict[Path, float] = {}
    for run in heads:
        tenant, name = run.split(":")
        settings = book.run(run)
        found[tenant,] = book.tenant(TenantId(tenant)).weight
        found[tenant, name] = settings.weight
        found[tenant, name, Purpose.EVAL] = settings.eval_share
        found[tenant, name, Purpose.TRAIN] = 1.0 - settings.eval_share
    return found
