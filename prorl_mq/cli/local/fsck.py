"""`prorl-mq fsck`: the invariants of what Redis holds, on a live server or on a copy of its files. Changes nothing."""

import argparse
import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from prorl_mq.cli.looking import service_redis
from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import redis_server
from prorl_mq.service.fsck.look import Report, judge, look
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store
from prorl_mq.store.workers import longest_lease_ms

FAULTS = (ProrlError,)  # exit code 2: it could not look
LEASE_MS = 15_000  # of workers, where none of them shows a longer one


async def run(given: argparse.Namespace) -> int:
    """Exit codes: 0 nothing is wrong, 1 something is, 2 it could not look."""
    try:
        report = await (_copy(given) if given.file else _server(given))
    except (RedisError, OSError) as error:
        raise ConfigurationError(
            f"the look was cut short: {error}; check the server and its user, look again"
        ) from None
    if given.json:
        violations = [each._asdict() for each in sorted(report.violations)]
        print(msgspec.json.encode({**msgspec.structs.asdict(report), "violations": violations}).decode())
    else:
        print("\n".join(lines(report)))
    return int(bool(report.violations))


def lines(report: Report) -> list[str]:
    """A line for each violation, then what was checked."""
    said = [str(each) for each in sorted(report.violations)]
    said += [f"not judged: {each}" for each in report.not_judged]
    held = f"{report.keys} keys, {report.groups} open groups, {report.jobs} jobs, {report.results} results"
    return [*said, f"{len(report.violations) or 'no'} violations in {held}"]


async def _server(given: argparse.Namespace) -> Report:
    async with service_redis(given) as store:
        lease_ms = max(LEASE_MS, await longest_lease_ms(store))
        apart_s = 2 * lease_ms / 1000  # what a dead process leaves is taken back by then
        return await judge(store, apart_s=apart_s, files=store.payloads)


async def _copy(given: argparse.Namespace) -> Report:
    async with served(given.file, given.namespace) as store:
        return await look(store, still=True)


@contextlib.asynccontextmanager
async def served(path: Path, namespace: str) -> AsyncIterator[Store]:
    """A server of our own on a copy of what lies there, since a server writes to its files.

    Raises `ConfigurationError` if it is neither an RDB file nor the directory of an append-only file.
    """
    with tempfile.TemporaryDirectory(prefix="fsck") as name:
        directory = Path(name)
        options = await asyncio.to_thread(copied, path, directory)
        async with redis_server.running(directory, options=options, namespace=namespace) as settings:
            redis = connect(settings)
            try:
                yield Store(redis, Keys(namespace), name="prorl-mq", outage_ms=2_000)
            finally:
                await redis.aclose()


def copied(path: Path, directory: Path) -> Sequence[str]:
    """Copies the files; the options of a server that loads them and saves nothing."""
    if path.is_dir():
        manifests = sorted(path.glob("*.manifest"))
        if not manifests:
            raise ConfigurationError(f"{path} has no *.manifest: give the appendonlydir of a server, or an RDB file")
        shutil.copytree(path, directory / "appendonlydir")
        name = manifests[0].name.removesuffix(".manifest")
        return ("--appenddirname", "appendonlydir", "--appendfilename", name, "--save", "")
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; copy it to where you may read it") from None
    if not head.startswith((b"REDIS", b"VALKEY")):
        raise ConfigurationError(f"{path} is no RDB file: give one, or the appendonlydir of a server")
    shutil.copy(path, directory / "dump.rdb")
    return ("--appendonly", "no", "--dbfilename", "dump.rdb", "--save", "")
