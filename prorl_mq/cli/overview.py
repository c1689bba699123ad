"""`prorl-mq status`: the whole service on one screen; `advise`: what limits it now."""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from prorl_mq.cli.looking import run_table, service_redis
from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError
from prorl_mq.process import mounts
from prorl_mq.process.screen.tables import fitted, json_text, table
from prorl_mq.process.screen.terminal import control
from prorl_mq.rules import bias
from prorl_mq.schema.ids import public
from prorl_mq.schema.messages import Stage
from prorl_mq.service import archived, inspect, payload_files
from prorl_mq.service.advice.facts import advise
from prorl_mq.service.guarantees import lines
from prorl_mq.store import batches, gauges, pools, runs
from prorl_mq.store.audit import guarantees
from prorl_mq.store.gauges import Gauges
from prorl_mq.store.server import notices
from prorl_mq.store.store import Store
from prorl_mq.store.workers import stalled, unfollowed, waits

FAULTS = (ConfigurationError,)
CLEAR: Final = "\x1b[H\x1b[2J"


class Look(NamedTuple):
    """Counts and their time, for rates between two looks."""

    at_s: float
    counters: Mapping[str, int]


async def run(given: argparse.Namespace) -> int:
    """One look, or one every few seconds until Ctrl-C."""
    async with service_redis(given) as store:
        if given.command == "advise":
            advice = await advise(store)
            print(msgspec.json.encode(advice).decode() if given.json else f"{advice.says}\n{advice.change}")
            return 0
        last: Look | None = None
        while True:
            now = await gauges.read(store)
            if given.json:
                print(json_text(await everything(store, now)), flush=True)
                if given.watch is None:
                    return 0
                await asyncio.sleep(given.watch)
                continue
            look = Look(monotonic(), now.counters)
            text = [*await overview(store, now, last), *await sandboxes(given.state_dir)]
            kept = [f"payloads: {await payload_files.told(store.payloads)}", archived.told(now.archive, now.at_ms)]
            kept.append(await notices.said(store, notices.TOKENS))
            text += ["\n".join(filter(None, kept)), await holds(store)]
            if given.watch is None:
                print(shown(text, sys.stdout.isatty()))
                return 0
            control(sys.stdout, CLEAR)
            print(shown(text, tall=True), flush=True)
            last = look
            await asyncio.sleep(given.watch)


async def everything(store: Store, now: Gauges) -> dict[str, Any]:
    """The same for programs."""
    known = await runs.known(store)
    looked = zip(known, await runs.look(store, known), strict=True)
    return {"service": now, "runs": dict(looked), "guarantees": (await holds(store)).splitlines()}


def shown(parts: Sequence[str], tall: bool) -> str:
    """As much as the terminal has room for; all of it where there is none."""
    if not tall:
        return "\n\n".join(parts)
    size = shutil.get_terminal_size((80, 24))
    return fitted(parts, size.columns, size.lines - 1)


async def overview(store: Store, now: Gauges, last: Look | None = None) -> list[str]:
    """The parts of the screen, what matters most first."""
    rows = [
        (stage.stage.value, stage.load.queued, stage.load.held, stage.workers, stage.busy, stage.slots,
         round(stage.load.oldest_s))
        for stage in now.stages
    ]  # fmt: skip
    parts = [
        _line(now),
        table(("stage", "queued", "held", "workers", "busy", "slots", "oldest s"), rows),
        _ended(now, last),
    ]
    idle = stalled(now.workers, {stage.stage: stage.load.queued for stage in now.stages})
    if idle:
        names = ", ".join(f"{worker.name} ({worker.read_ms / 1000:.0f} s)" for worker in idle)
        parts.append(f"free slots, and work waits, but no read was answered: {names}; see `prorl-mq doctor`")
    if any(stage.load.queued for stage in now.stages if stage.stage is Stage.INIT):
        of_init = [worker for worker in now.workers if worker.stage is Stage.INIT and worker.slots]
        parts += filter(None, [unfollowed(now.workers, of_init)])
    if waiting := [*(f"waits: {each.text}" for each in now.failing if each.open), *waits(now.workers)]:
        parts.append("\n".join(waiting))
    parts += [f"run {run}: {said}" for run, losses in now.losses.items() if (said := bias.told(losses))]
    if now.lanes:
        lanes = [(node, lane.queued, lane.held) for node, lane in now.lanes.items()]
        parts.append(table(("lane", "queued", "held"), lanes))
    if now.families:
        lacked = [(each.name, each.load.queued, each.load.held, each.slots) for each in now.families]
        parts.append(table(("family lane", "queued", "held", "slots"), lacked))
        parts += [each.why for each in now.families if each.why and each.load.queued]
    sampled = await _sampled(store)
    if sampled:
        parts.append(table(("DAPO batch", "phase", "accepted", "target", "in play", "waiting", "rate"), sampled))
    parts.append(_backends(now))
    known = await runs.known(store)
    parts.append(run_table(dict(zip(known, await runs.look(store, known), strict=True))))
    return parts


async def sandboxes(state_dir: Path) -> list[str]:
    """Of the keepers on this machine, as they say themselves."""
    if not (state_dir / "keepers").is_dir():
        return []
    argv = (sys.executable, "-P", "-m", "sandbox", "keepers", "--state-dir", str(state_dir))
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    rows = []
    for line in said.decode().splitlines():
        name, _, told = line.partition("  ")
        if told.startswith("{"):
            counts = json.loads(told)
            rows.append((name, *(counts[each] for each in ("live", "warm", "cold_starts", "leaked_destroyed"))))
    return [table(("sandboxes of", "live", "warm", "cold starts", "leaked"), rows)] if rows else []


async def holds(store: Store) -> str:
    """The guarantees of this service, each with its limit, a line each."""
    facts = await guarantees.read(store)
    return "\n".join(lines(facts, file_system=mounts.here(facts.server.directory, facts.server.process)))


def _line(now: Gauges) -> str:
    limit = f" of {now.memory_limit_bytes >> 20} MiB" if now.memory_limit_bytes else ""
    backlog = sum(now.backlog_by_tenant.values())
    aside = f"delayed {now.delayed}, paused {now.paused}, due {now.due}"
    return f"backlog {backlog} groups, {aside}, Redis {now.memory_bytes >> 20} MiB{limit}"


def _ended(now: Gauges, last: Look | None) -> str:
    """Number of jobs of each outcome so far, and their rate per minute since the last look."""
    told = {name.partition(":")[2]: count for name, count in now.counters.items() if name.startswith("jobs:")}
    text = "ended: " + (", ".join(f"{name} {count}" for name, count in sorted(told.items())) or "none yet")
    if last is None:
        return text
    before = sum(count for name, count in last.counters.items() if name.startswith("jobs:"))
    minutes = (monotonic() - last.at_s) / 60
    return f"{text}; {(sum(told.values()) - before) / minutes:.0f} a minute"


def _backends(now: Gauges) -> str:
    rows = [(pool, one.address, _state(one), one.version or "", one.in_flight) for pool, one in now.backends]
    return table(("pool", "backend", "state", "version", "in flight"), rows) if rows else "no backends"


def _state(backend: pools.BackendStatus) -> str:
    """State, breaker and note of a backend in a few words."""
    shut = "dead" if not backend.alive else backend.breaker.replace("_", " ") if backend.breaker != "closed" else ""
    return ", ".join(part for part in (backend.state, shut, backend.note) if part)


async def _sampled(store: Store) -> list[tuple[Any, ...]]:
    """DAPO batches that have no report yet."""
    rows = []
    for ref in await batches.not_closed(store):
        now = (await inspect.batch_status(store, ref)).dapo
        if now is not None:
            name, rate = public(ref), round(now.rate, 2)
            rows.append((name, now.phase.value, now.accepted, now.target_groups, now.in_play, now.waiting, rate))
    return rows
