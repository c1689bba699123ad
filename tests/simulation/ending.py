"""What must hold at the end of every history: records whole and once, nothing held, no key without an owner."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.lifecycle import COUNTS
from prorl_mq.schema.messages import GroupRecord, Stage, Verdict
from tests.simulation.work import RUN, RUN_ID

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_S: Final = 12.0  # for a sweep to remove what is left


async def check_end(world: "World") -> None:
    """Adds a finding for each thing that does not hold."""
    if not world.oracle.violations:  # else the model knows nothing of what came after the first
        _records(world)
    give_up = world.loop.time() + PATIENCE_S
    while (left := leftovers(world)) and world.loop.time() < give_up:
        await asyncio.sleep(0.25)
    if left:
        world.finding("something is left after the last ack", "; ".join(left))


def _records(world: "World") -> None:
    """Every submitted group has one record, which lists every sample that was ever admitted."""
    closed = [each.record for each in world.trainer.closed]
    submitted = {group.group_id for each in world.trainer.requests for group in each.groups}
    times = Counter(record.group_id for record in closed)
    if times != Counter(submitted):
        world.finding("not one record for each group", f"{sorted(times.items())} of {sorted(map(str, submitted))}")
    for record in closed:
        fault = _fault(record, world.oracle.model.admitted.get(f"{RUN}:{record.group_id}", 0))
        if fault:
            world.finding("a record is wrong", f"{RUN_ID}:{record.group_id} {fault}")


def _fault(record: GroupRecord, admitted: int) -> str:
    listed = [sample.index for sample in record.samples]
    if listed != list(range(admitted)):
        return f"lists samples {listed} of {admitted} admitted: {record.verdict} ({record.reason})"
    counting = sum(sample.outcome in COUNTS for sample in record.samples)
    if record.verdict is Verdict.ACCEPTED and record.bias is None and counting < record.n:
        return f"is accepted with {counting} of {record.n} samples that count"
    return ""


def leftovers(world: "World") -> list[str]:
    """Keys that are neither permanent nor dying, timers and entries of work that is over."""
    keys, call = world.keys, world.network.server.call
    world.network.server.set_time(world.network.wall_us, world.loop.now_us)
    permanent = {
        keys.epoch, keys.due, keys.events, keys.cancels, keys.runs, keys.schemas, keys.workers, keys.eval_bytes,
        keys.admit_bell, keys.draw_bell, keys.intakes, keys.counters, keys.lanes, keys.intake(RunRef(RUN)),
        *(keys.stage(stage) for stage in Stage), keys.stage(Stage.RUN, "n0"),
    }  # fmt: skip
    names = sorted(each.decode() for each in call(("KEYS", f"{keys.prefix}*")))
    owned = [name for name in names if name in permanent or call(("PTTL", name)) != -1 or _harmless(name, call)]
    found = [name for name in names if name not in owned]
    for stream in (keys.due, keys.intake(RunRef(RUN)), *(keys.stage(stage) for stage in Stage)):
        if call(("XLEN", stream)):
            found.append(f"{stream} has {call(('XLEN', stream))} entries")
        if stream.startswith(f"{keys.prefix}stage") and (pending := call(("XPENDING", stream, "workers"))[0]):
            found.append(f"{stream} has {pending} pending entries")
    if int(call(("GET", keys.eval_bytes)) or 0):
        found.append("bytes wait for EVAL")
    return found


def _harmless(name: str, call: Any) -> bool:
    """A result stream with nothing but answers, which are swept by age; a foreign key of a fault."""
    if ":other" in name:
        return True
    if ":results:" not in name:
        return False
    return all(fields[0] == b"a" for _, fields in call(("XRANGE", name, "-", "+")))
