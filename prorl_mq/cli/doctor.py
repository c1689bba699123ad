"""`prorl-mq doctor`: checks everything that a service needs; each fault says how to fix it."""

import argparse
import asyncio
import importlib.metadata
import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from prorl_mq import __version__
from prorl_mq.cli.looking import service_redis
from prorl_mq.cli.overview import holds
from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import ownership, tokenizers
from prorl_mq.process.redis_server import configuration
from prorl_mq.service import payload_files
from prorl_mq.store import gauges
from prorl_mq.store.archive import waiting
from prorl_mq.store.payloads import owner
from prorl_mq.store.server import fitness, notices
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living, stalled

FAULTS = (ConfigurationError,)
SERVER_FIX: Final = (
    "start `python -m sandbox serve` there, and name it in PRORL_SANDBOX_SERVER and PRORL_SANDBOX_TOKEN_FILE"
)
NOTES: Final = {"writable directories": "directories of images become writable by", "limits": "limits are"}
SERVICE: Final = ("starlette", "uvicorn", "prometheus_client", "tokenizers", "transformers")


class Finding(NamedTuple):
    """One check. `fix` is empty if it passed."""

    what: str
    said: str
    fix: str = ""


async def run(given: argparse.Namespace) -> int:
    """Exit code 1 if anything has to be fixed."""
    ill = False
    async for finding in findings(given):
        if given.json:  # one line each, as soon as it is known
            print(msgspec.json.encode(finding._asdict()).decode(), flush=True)
            ill |= bool(finding.fix)
            continue
        print(f"{'FAIL' if finding.fix else 'ok':4}  {finding.what:10}  {finding.said}")
        if finding.fix:
            print(f"                  fix: {finding.fix}")
            ill = True
    return int(ill)


async def findings(given: argparse.Namespace) -> AsyncIterator[Finding]:
    """One after the other, each as soon as it is known."""
    for finding in _versions():
        yield finding
    yield await _tokenizer(given.tokenizer)
    addresses = list(given.backend)
    try:
        async with service_redis(given) as store:
            async for finding in redis_findings(store):
                yield finding
            for line in (await holds(store)).splitlines():
                subject, _, said = line.partition(" ")
                yield Finding(subject, said.strip())
            yield await _payloads(store)
            if fault := await notices.said(store, notices.TOKENS):
                yield Finding("tokens", fault, "correct the file: API processes read it again by themselves")
            if (state := await waiting.state(store)).fault:
                fix = "make room or writable what it lies on; what is acknowledged waits meanwhile, up to a bound"
                yield Finding("archive", state.fault, fix)
            addresses += [each.address for _, each in (await gauges.read(store)).backends]
    except (ProrlError, RedisError, OSError) as error:
        where = given.redis or f"the service in {given.state_dir}"
        yield Finding("redis", f"{where}: {error}", "start it (`prorl-mq up`), or name a running one with --redis URL")
    yield await _sandbox(given.sandbox, given.state_dir)
    if not addresses:
        yield Finding("backend", "there is none", "add one: `prorl-mq up --backend URL`, or name it with --backend")
    for address in dict.fromkeys(addresses):
        yield await _backend(address)


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name in SERVICE if importlib.util.find_spec(name) is None]
    if missing:
        yield Finding("versions", f"{', '.join(missing)} are not installed", "pip install 'prorl-mq[service]'")
    else:
        told = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("redis", "msgspec", "transformers"))
        yield Finding("versions", f"prorl-mq {__version__}, Python {python}, {told}")
    try:
        ownership.check()
    except ConfigurationError as error:
        yield Finding("packages", str(error), "use a virtual environment in which only prorl-mq has these names")


async def _tokenizer(directory: Path | None) -> Finding:
    if directory is None and not os.environ.get("PRORL_MODELS"):
        return Finding("tokenizer", "not checked: give its directory with --tokenizer")
    if directory is not None and not (directory / "tokenizer_config.json").exists():
        return Finding("tokenizer", f"{directory} has no tokenizer_config.json", tokenizers.FIX)
    code, lines = await _module("workers.agent", env={"PRORL_TOKENIZER": str(directory)} if directory else {})
    if code == 0:
        return Finding("tokenizer", lines[-1])
    fix = "use a model of a format in docs/reference/formats.md, or bring its format in a package of your own"
    return Finding("tokenizer", lines[-1], fix)


async def redis_findings(store: Store) -> AsyncIterator[Finding]:
    """Faults of a server, or of the workers that use it."""
    warnings = await fitness.start_up(store.redis)
    version = (await fitness.info(store.redis, "server")).get("redis_version", "?")
    master = await fitness.master(store.redis)
    if master:
        fix = "name its master with --redis URL, or make this one the master: REPLICAOF NO ONE"
        yield Finding(
            "redis", f"version {version}, a replica of {master}: nothing is accepted or acknowledged here", fix
        )
    else:
        yield Finding("redis", f"version {version}, fit")
    for warning in warnings:
        yield Finding("redis", warning, f"start it from {configuration()}")
    pressure = await fitness.pressure(store.redis)
    if pressure > 0.7:
        said = f"{pressure:.0%} of maxmemory is used: new work is refused"
        yield Finding("memory", said, "acknowledge results, or raise maxmemory")
    stages = (await gauges.read(store)).stages
    workers = await living(store)
    for worker in workers:
        if worker.waits:
            fix = "give it what it waits for, or free the node's CPUs: it continues by itself"
            yield Finding("workers", f"{worker.name} on {worker.node}: {worker.waits}", fix)
    for worker in stalled(workers, {stage.stage: stage.load.queued for stage in stages}):
        said = f"{worker.name} has {worker.free} free slots and work waits, but it read nothing for"
        fix = (
            f"look at its log, then `kill -9 {worker.pid}` on {worker.node}, and start another: its jobs are taken back"
        )
        yield Finding("workers", f"{said} {worker.read_ms / 1000:.0f} s", fix)
    for stage in stages:
        if stage.workers:
            yield Finding("workers", f"{stage.workers} of {stage.stage} with {stage.slots} slots")
        else:
            yield Finding("workers", f"no {stage.stage} worker is alive", f"start prorl-worker --stage {stage.stage}")


async def _payloads(store: Store) -> Finding:
    if fault := await payload_files.fault(store.payloads):
        return Finding("payloads", fault, "make room or writable what it lies on: RUN keeps them in Redis meanwhile")
    if store.payloads is not None and (why := await owner.stranger(store, store.payloads)):
        said, _, fix = why.partition(". ")
        return Finding("payloads", said, fix)
    return Finding("payloads", await payload_files.told(store.payloads))


async def _sandbox(kind: str, state: Path) -> Finding:
    if kind == "none":
        return Finding("sandbox", "not wanted")
    words = ("sandbox", "selfcheck", "--kind", kind)
    code, lines = await _module(*words, env={"PRORL_STATE": str(state)})
    if code == 0:
        notes = {name: line.rpartition(" ms  ")[2] for name in NOTES for line in lines if line.startswith(f"{name} ")}
        told = "".join(f"; {NOTES[name]} {note}" for name, note in notes.items())
        return Finding("sandbox", f"{kind}: a sandbox was created, and passed its checks{told}")
    wrong = next((line for line in lines if " failed " in line), lines[-1])
    first = SERVER_FIX if kind == "remote" else f"prorl-mq install-tools --state-dir {shlex.quote(str(state))}"
    return Finding("sandbox", f"{kind}: {wrong}", f"{first}; then look at `python -m {' '.join(words)}`")


async def _backend(address: str) -> Finding:
    code, lines = await _module("workers.inference", address)
    if code == 0:
        return Finding("backend", f"{address} sampled a token: {lines[-1]}")
    return Finding("backend", lines[-1], "start it, or remove it from its pool; vLLM needs --enable-scale-out")


async def _module(*words: str, env: Mapping[str, str] | None = None) -> tuple[int, list[str]]:
    """Runs a module of the service, which the command line may not import; at least one line of what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", *words),
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return await process.wait(), lines or ["it said nothing"]
