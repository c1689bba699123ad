"""Every invariant that Redis's data can show: work in every place has no violation, and each planted one is found."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.messages import GroupRecord, Outcome, Stage
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.service.fsck.look import look
from prorl_mq.store.audit.reads import TYPES, Key
from prorl_mq.store.core import Command
from prorl_mq.store.layout import keys as layout
from prorl_mq.store.layout.keys import Keys
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio

# (number, the key that is named, commands). `@` is the namespace's prefix, `entry(NAME)` the entry of a group's job.
PLANTED: Sequence[tuple[int, str, Sequence[str]]] = [
    (1, "@job:acme:r:queued:0", ["XDEL @stage:init entry(queued)"]),
    (1, "@job:acme:r:queued:0", ["ZADD @leases 5 acme:r:queued:0"]),
    (1, "@job:acme:r:init:0", ["ZREM @leases acme:r:init:0"]),
    (1, "@job:acme:r:delayed:0", ["ZREM @delayed acme:r:delayed:0"]),
    (1, "@job:acme:r:paused:0", ["ZREM @paused acme:r:paused:0"]),
    (1, "@job:acme:r:paused:0", ["HSET @job:acme:r:paused:0 entry 1-1"]),
    (1, "@job:acme:r:due:0", ["ZADD @paused 5 acme:r:due:0"]),
    (11, "@job:acme:r:paused:0", ["ZADD @deadlines 5 acme:r:paused:0"]),
    (1, "@job:acme:r:run:0", ["HSET @job:acme:r:run:0 stream @stage:eval"]),
    (1, "@job:acme:r:due:0", ["ZADD @deadlines 5 acme:r:due:0"]),
    (1, "@stage:init", ["XADD @stage:init * j acme:r:queued:0"]),
    (1, "@stage:eval", ["XADD @stage:eval * j acme:r:nobody:0"]),
    (2, "@job:acme:r:run:0", ["HSET @job:acme:r:run:0 state sleeping"]),
    (6, "@group:acme:r:backlog", ["ZREM @backlog:acme:r acme:r:backlog"]),
    (6, "@group:acme:r:reserve", ["ZREM @reservoir:acme:r:b2 acme:r:reserve"]),
    (6, "@group:acme:r:reserve", ["UNLINK @batch:acme:r:b2"]),
    (6, "@group:acme:r:run", ["UNLINK @batch:acme:r:of-run"]),
    (6, "@batch:acme:r:b2", ["PEXPIRE @batch:acme:r:b2 60000"]),
    (6, "@batch:acme:r:of-run", ["PEXPIRE @batch:acme:r:of-run 60000"]),
    (6, "@group:acme:r:due", ["DEL @due"]),
    (6, "@group:acme:r:run", ["PEXPIRE @group:acme:r:run 60000"]),
    (6, "@group:acme:r:run", ["UNLINK @open:acme:r:run"]),
    (6, "@group:acme:r:queued", ["UNLINK @job:acme:r:queued:0"]),
    (6, "@job:acme:r:run:0", ["PEXPIRE @job:acme:r:run:0 60000"]),
    (7, "@job:acme:r:run:0", ["HSET @epoch tokens 0"]),
    (7, "@job:acme:r:run:0", ["HSET @epoch number 0"]),
    (7, "@results:acme:r", ["HSET @epoch number 0"]),
    (8, "@job:acme:r:run:0", ["HSET @job:acme:r:run:0 owner w2"]),
    (10, "@job:acme:r:run:0", ["ZADD @leases 9999999999999 acme:r:run:0"]),
    (11, "@job:acme:r:queued:0", ["ZREM @deadlines acme:r:queued:0"]),
    (11, "@job:acme:r:run:0", ["HSET @job:acme:r:run:0 deadline 5", "ZADD @deadlines 5 acme:r:run:0"]),
    (12, "@group:acme:r:run", ["HSET @job:acme:r:run:0 deaths 4"]),
    (12, "@group:acme:r:run", ["HSET @job:acme:r:run:0 deaths 8 progress 4"]),
    (12, "@group:acme:r:run", ["HSET @job:acme:r:run:0 deaths 11 progress 11"]),
    (14, "@group:acme:r:run", ["HSET @group:acme:r:run open 2"]),
    (14, "@group:acme:r:due", ["HDEL @group:acme:r:due s:0"]),
    (14, "@job:acme:r:run:0", ["UNLINK @group:acme:r:run"]),
    (15, "@group:acme:r:closed", ["DEL @results:acme:r"]),
    (15, "@results:acme:r", ["UNLINK @blob:acme:r:closed:0:1-0.1:trajectory"]),
    (15, "@blob:acme:r:closed:0:1-0.1:trajectory", ["PEXPIRE @blob:acme:r:closed:0:1-0.1:trajectory 60000"]),
    (17, "@group:acme:r:again", ["HSET @group:acme:r:again refills 0"]),
    (17, "@group:acme:r:backlog", ["HSET @group:acme:r:backlog withdrawn cancel"]),
    (17, "@group:acme:r:run", ["ZADD @backlog:acme:r 5 acme:r:run"]),
    (17, "@group:acme:r:closed", ["SADD @groups:acme:r acme:r:closed"]),
    (18, "@job:acme:r:stopping:0", ["HSET @job:acme:r:stopping:0 ending completed"]),
    (18, "@job:acme:r:due:0", ["HSET @job:acme:r:due:0 ending cancelled"]),
    (20, "@batch:acme:r:b2", ["HSET @batch:acme:r:b2 n:accepted 2"]),
    (20, "@batch:acme:r:b2", ["ZREM @dapo acme:r:b2"]),
    (20, "@batch:acme:r:b2", ["HSET @batch:acme:r:b2 phase closed"]),
    (20, "@batch:acme:r:b2", ["HSET @batch:acme:r:b2 closed 9"]),
    (20, "@group:acme:r:played", ["ZREM @drawn:acme:r:b2 acme:r:played"]),
    (20, "@drawn:acme:r:b2", ["HSET @group:acme:r:played batch acme:r:b"]),
    (20, "@reservoir:acme:r:b2", ["HSET @group:acme:r:reserve order 7"]),
    (20, "@carried:acme:r", ["DEL @carrying"]),
    (20, "@group:acme:r:played", ["HSET @group:acme:r:played parked 1"]),
    (20, "@parked:acme:r:b2", ["ZADD @parked:acme:r:b2 5 acme:r:played"]),
    (20, "@parked:acme:r:of-run", ["HSET @group:acme:r:played parked 1", "ZADD @parked:acme:r:of-run 5 acme:r:played"]),
    (23, "@in_flight", ["HINCRBY @in_flight acme:r 1"]),
    (23, "@unacked", ["HINCRBY @unacked acme:r 1"]),
    (23, "@run:acme:r", ["HINCRBY @run:acme:r bytes 1"]),
    (24, "@pool:policy", ["ZINCRBY @pool:policy 1 http://b1"]),
    (24, "@job:acme:r:queued:0", ["HSET @job:acme:r:queued:0 backend http://b1"]),
    (25, "@bytes:eval", ["INCRBY @bytes:eval 1"]),
    (26, "@strange", ["SET @strange 1"]),
    (26, "@results:other:r", ["SET @results:other:r 1"]),
    (26, "@batch:acme:r:of-closed", ["PERSIST @batch:acme:r:of-closed"]),
    (26, "@batches:acme:r", ["ZREM @runs acme:r"]),
    (26, "@blob:acme:r:run:0:1-0.9:trajectory", ["SET @blob:acme:r:run:0:1-0.9:trajectory x"]),
    (26, "@sealed:acme:r:closed", ["SET @sealed:acme:r:closed x"]),
    (26, "@fork:acme:r:closed", ["HSET @fork:acme:r:closed turns x"]),
    (26, "@fork:acme:r:nobody", ["HSET @fork:acme:r:nobody turns x"]),
    (26, "@group:acme:r:run", ["SREM @groups:acme:r acme:r:run"]),
    (26, "@groups:acme:r", ["SADD @groups:acme:r acme:r:nobody"]),
    (26, "@group:acme:r:run", ["SREM @groups:acme:r:of-run acme:r:run"]),
    (26, "@groups:acme:r:of-run", ["SADD @groups:acme:r:of-run acme:r:nobody"]),
    (26, "@groups:acme:r:of-run", ["SADD @groups:acme:r:of-run acme:r:queued"]),
    (26, "@backlog:acme:r", ["ZADD @backlog:acme:r 5 acme:r:nobody"]),
    (26, "@results:acme:r", ["ZREM @runs acme:r"]),
    (26, "@job:acme:r:closed:0", ["PERSIST @job:acme:r:closed:0"]),
    (26, "@stage:init", ["XDEL @stage:init entry(init)"]),
    (26, "@stage:run@gone", ["XADD @stage:run@gone * j acme:r:queued:0"]),
    (64, "@archive_state", ["HSET @archive_state groups 1"]),
    (64, "@archive_state", ["HSET @archive_state bytes 5"]),
    (26, "@worker:w9", ["HSET @worker:w9 stage run"]),
    (29, "@group:acme:r:run", ["HSET @group:acme:r:run batch other:r:b"]),
]


async def found(queue: Queue) -> set[tuple[int, str]]:
    return {(each.number, each.key) for each in (await look(queue.store, still=True)).violations}


async def plant(queue: Queue, line: str) -> None:
    async def entry(name: str) -> str:
        return (await queue.command("HGET", queue.keys.job(JobRef(f"acme:r:{name}:0")), "entry")).decode()

    words = [word.replace("@", queue.keys.prefix, 1) if word.startswith("@") else word for word in line.split()]
    names = [re.fullmatch(r"entry\((\w+)\)", word) for word in words]
    await queue.command(*[await entry(name[1]) if name else word for name, word in zip(names, words, strict=True)])


async def test_work_in_every_place_has_no_violation(busy: Queue) -> None:
    report = await look(busy.store, still=True)
    assert (report.violations, report.not_judged) == ([], [])
    assert (report.groups, report.jobs, report.results, report.idle) == (13, 8, 1, False)


@pytest.mark.parametrize(("number", "key", "commands"), PLANTED, ids=lambda value: str(value)[:60])
async def test_a_planted_violation_is_found(busy: Queue, number: int, key: str, commands: Sequence[str]) -> None:
    for line in commands:
        await plant(busy, line)
    assert (number, key.replace("@", busy.keys.prefix, 1)) in await found(busy)


async def test_deaths_that_logged_turns_have_made_good_are_no_violation(busy: Queue) -> None:
    await plant(busy, "HSET @job:acme:r:run:0 deaths 9 progress 7")
    assert await found(busy) == set()


async def changed(queue: Queue, **about: Any) -> None:
    """The record of `closed`, otherwise than its group was settled."""
    [result] = await queue.results()
    record = decode(result.record, GroupRecord)
    fields = {name: getattr(record, name) for name in record.__struct_fields__} | about
    await queue.command("XADD", queue.keys.results(RUN), "*", "r", encode(GroupRecord(**fields)))


@pytest.mark.parametrize(
    ("number", "sample"),
    [(14, {"index": 1}), (14, {"outcome": Outcome.INFRA_ERROR, "reward": None}), (16, {"reward": math.inf}),
     (16, {"outcome": Outcome.INFRA_ERROR})],
)  # fmt: skip
async def test_a_record_that_no_verdict_makes_is_found(busy: Queue, number: int, sample: dict[str, Any]) -> None:
    [result] = await busy.results()
    [old] = decode(result.record, GroupRecord).samples
    fields = {name: getattr(old, name) for name in old.__struct_fields__} | sample
    await changed(busy, samples=[type(old)(**fields)])
    assert (number, busy.keys.results(RUN)) in await found(busy)
    assert "has its record at" in " ".join(each.what for each in (await look(busy.store, still=True)).violations)


async def test_a_sealed_field_in_the_open_part_of_a_task_is_found(busy: Queue) -> None:
    await busy.command("HSET", busy.keys.schemas, "sums", encode(Schema(optional=("question",))))
    assert await found(busy) == set()
    await busy.command("HSET", busy.keys.schemas, "sums", encode(Schema(sealed=("question",))))
    assert (28, f"{busy.keys.prefix}group:acme:r:run") in await found(busy)


async def test_a_pool_of_another_tenant_is_found(busy: Queue) -> None:
    key = f"{busy.keys.prefix}open:acme:r:run"
    spec = decode(await busy.command("GET", key), GroupSpec)
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    for pool, there in (("acme:policy", False), ("other:policy", True)):
        await busy.command("SET", key, encode(GroupSpec(**{**fields, "pool": pool})))
        assert ((29, f"{busy.keys.prefix}group:acme:r:run") in await found(busy)) is there


async def test_turns_that_a_forked_group_lacks_are_found(busy: Queue) -> None:
    key = f"{busy.keys.prefix}open:acme:r:run"
    spec = decode(await busy.command("GET", key), GroupSpec)
    forked = replace(spec, fork=ForkedFrom(job_id="r:g:0", turn=1))
    await busy.command("SET", key, encode(forked))
    assert (6, f"{busy.keys.prefix}group:acme:r:run") in await found(busy)
    await plant(busy, "HSET @fork:acme:r:run turns x")
    assert await found(busy) == set()


async def test_one_token_of_two_jobs_is_found(busy: Queue) -> None:
    for name in ("init", "run"):
        await plant(busy, f"HSET @job:acme:r:{name}:0 token same")
    assert {number for number, _ in await found(busy)} == {7}


async def test_a_look_changes_nothing(busy: Queue) -> None:
    watch = Watch(busy.redis, busy.keys)
    await watch.look()
    await look(busy.store)
    await watch.nothing_changed()


@dataclass
class Closing:
    """Reads beside which a node's lane is closed, right before a command of this name asks for its group."""

    queue: Queue
    name: str
    keys: Keys

    async def read_many(self, commands: Sequence[Command]) -> list[Any]:
        lane = self.keys.stage(Stage.RUN, "n1")
        if any(command[0] == self.name and lane in command for command in commands):
            await self.queue.command("UNLINK", lane)
        return await self.queue.store.read_many(commands)

    async def read_at_once(self, commands: Sequence[Command]) -> list[Any]:
        return await self.queue.store.read_at_once(commands)


@pytest.mark.parametrize("work", [True, False])
@pytest.mark.parametrize("name", ["XINFO", "XPENDING"])
async def test_a_lane_that_is_closed_meanwhile_does_not_end_a_look(busy: Queue, name: str, work: bool) -> None:
    """The last worker of a node leaves, and the stream goes with it; with a job that names it, and without."""
    if not work:
        for ref in await busy.redis.keys(f"{busy.keys.prefix}job:*"):
            await busy.command("HDEL", ref, "stream")
    report = await look(Closing(busy, name, busy.keys))
    assert report.jobs == 8
    assert not await busy.command("EXISTS", busy.keys.stage(Stage.RUN, "n1"))


async def test_the_only_copy_of_a_record_is_never_to_be_deleted(busy: Queue) -> None:
    await plant(busy, "UNLINK @group:acme:r:closed")
    [advice] = [each.fix for each in (await look(busy.store, still=True)).violations if "is gone" in each.what]
    assert advice.startswith("it is the only copy: read and acknowledge it")
    assert "XDEL" not in advice


async def test_a_surplus_copy_of_a_record_is_to_be_deleted(busy: Queue) -> None:
    await changed(busy)
    [_, surplus] = [each.cursor for each in await busy.results()]
    advice = [each.fix for each in (await look(busy.store, still=True)).violations if each.number == 14]
    assert advice == [f"it is there twice: delete this copy, XDEL {busy.keys.results(RUN)} {surplus}"]


@pytest.mark.parametrize("known", ["SADD @intakes acme:new", "SADD @intakes:acme new"])
async def test_a_trainer_may_make_its_results_before_its_first_batch(busy: Queue, known: str) -> None:
    """As the direct path's page says: an intake, then a consumer group of the results."""
    for line in (known, "XGROUP CREATE @results:acme:new trainer 0 MKSTREAM"):
        await plant(busy, line)
    assert await found(busy) == set()


async def test_a_key_without_an_owner_says_which_owner_is_unknown(busy: Queue) -> None:
    for line in ("XADD @results:acme:new * a b", "SET @sealed:acme:r:nobody x", "XADD @intake:acme:new * m x"):
        await plant(busy, line)
    said = {each.what for each in (await look(busy.store, still=True)).violations}
    assert said == {"no run acme:new is known", "no open group acme:r:nobody is known", "no intake acme:new is known"}


@pytest.mark.parametrize("line", ["ZREM @runs acme:r", "XADD @intake:acme:new * m x"])
async def test_the_owner_of_what_may_be_work_is_to_be_made_known_again(busy: Queue, line: str) -> None:
    """Deleted for want of an owner, a run's backlog or results, or a trainer's messages, would be lost."""
    await plant(busy, line)
    advice = {each.fix for each in (await look(busy.store, still=True)).violations}
    assert not [each for each in advice if "UNLINK" in each]
    [command] = {each.rpartition(": ")[2] for each in advice}
    await busy.command(*command.split())
    assert await found(busy) == set()


async def test_what_a_later_release_may_have_written_is_not_deleted_at_once(busy: Queue) -> None:
    for line in ("HSET @job:acme:r:run:0 state sleeping", "SET @strange 1"):
        await plant(busy, line)
    advice = {each.key: each.fix for each in (await look(busy.store, still=True)).violations}
    assert advice[busy.keys.job(JobRef("acme:r:run:0"))].startswith("a later release may have written it: look with")
    assert advice[busy.keys.prefix + "strange"].startswith("unless a later release wrote it, nothing owns it")


WRITES = {
    "hash": ("HSET", "a", "b"), "zset": ("ZADD", 5, "a"), "set": ("SADD", "a"), "stream": ("XADD", "*", "a", "b"),
    "string": ("SET", "a"),
}  # fmt: skip
UNREADABLE = {
    "hash": ("HSET", b"\xff", b"\xff"), "zset": ("ZADD", "inf", b"\xff"), "set": ("SADD", b"\xff"),
    "stream": ("XADD", "*", b"\xff", b"\xff", "b", "c"), "string": ("SET", b"\xff"),
}  # fmt: skip
TOO_LONG = "a:b:c:d:e:f:g:h:i"
NAMES = ("a", "a:b", "a:b:c", "a:b:c:d", "a:b:c:x:y:z", "", ":", "a::", "::0", "\N{REPLACEMENT CHARACTER}", TOO_LONG)


async def test_an_ill_named_key_of_any_kind_is_a_violation(busy: Queue) -> None:
    """Of each kind in the table of keys, with names that are too short, too long and empty in parts."""
    planted = [f"{busy.keys.prefix}{kind}:{name}" for kind in TYPES for name in NAMES]
    for key in planted:
        command, *values = WRITES[TYPES[key.removeprefix(busy.keys.prefix).partition(":")[0]]]
        await busy.command(command, key, *values)
    assert {key for key in planted if key.endswith(TOO_LONG)} <= {
        key for number, key in await found(busy) if number == 26
    }


EXAMPLES = {"R": "t:r", "B": "t:r:b", "G": "t:r:g", "J": "t:r:g:0", "T": "t", "S": "init", "P": "t:policy", "D": "reap",
            "NODE": "n0", "FAMILY": "math", "NAME": "run-n0-1", "TOKEN": "5", "KIND": "trajectory"}  # fmt: skip


def tabled() -> list[tuple[str, str]]:
    """Each kind of key that the table in `keys.py` names, as an example, with its type."""
    found = list[tuple[str, str]]()
    for line in layout.__doc__.splitlines():
        names, _, rest = line.strip("| ").partition(" | ")
        if line.startswith("| ") and names != "key":
            each, kinds = names.split(", "), rest.partition(" | ")[0].split(", ")
            found += zip(each, kinds if len(kinds) > 1 else kinds * len(each), strict=True)
    return [(re.sub("[A-Z]+", lambda part: EXAMPLES[part[0]], name), kind) for name, kind in found]


async def test_fsck_knows_every_key_of_the_table(busy: Queue) -> None:
    """And the table every kind that fsck knows."""
    prefix, keys = busy.keys.prefix, tabled()
    types = {"integer": "string"}
    strange = [
        name for name, kind in keys if not Key(prefix + name, *name.partition(":")[::2], types.get(kind, kind), -1).fits
    ]
    assert strange == []
    assert {name.partition(":")[0] for name, _ in keys} | {"stage"} >= TYPES.keys()


@pytest.mark.parametrize(
    "kinds",
    [("due",), ("group",), ("job", "batch"), ("results", "stage"), ("open", "blob", "epoch"), ("leases", "workers"),
     ("lanes", "schemas", "unacked", "pools", "in_flight"), tuple(TYPES)],
)  # fmt: skip
async def test_what_cannot_be_read_does_not_end_a_look(busy: Queue, kinds: Sequence[str]) -> None:
    """A member that does not parse, and no field that does."""
    keys = busy.keys.prefix
    for kind in kinds:
        command, *values = UNREADABLE[TYPES[kind]]
        for name in [*(await busy.command("KEYS", f"{keys}{kind}:*")), f"{keys}{kind}"]:
            await busy.command(command, name, *values)
            for field in await busy.command("HKEYS", name) if command == "HSET" else ():
                await busy.command("HSET", name, field, b"\xff")
    assert any(number == 26 for number, _ in await found(busy))


async def test_keys_of_another_type_than_their_own_are_violations(busy: Queue) -> None:
    other = {kind: ("SADD", "x") if type_ == "string" else ("SET", "x") for kind, type_ in TYPES.items()}
    for kind, (command, value) in other.items():
        await busy.command("UNLINK", busy.keys.prefix + kind)
        await busy.command(command, busy.keys.prefix + kind, value)
    assert {(26, busy.keys.prefix + kind) for kind in other} <= await found(busy)


async def test_what_cannot_be_read_is_named_and_copied_for_a_report(busy: Queue) -> None:
    await plant(busy, "HSET @group:acme:r:run next many")
    said = {str(each) for each in (await look(busy.store, still=True)).violations}
    key = f"{busy.keys.prefix}group:acme:r:run"
    why = "invalid literal for int() with base 10: 'many'"
    advice = f"copy it for a report (DUMP {key}), with `prorl-mq fsck --json`"
    assert f"invariant 26: {key}: what it holds, or what it names, cannot be read: {why}; {advice}" in said
