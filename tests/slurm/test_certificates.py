"""TLS of the Redis that is a job: who connects shows a certificate, and all of them are renewed while it runs."""

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from redis.exceptions import ConnectionError

from prorl_mq.errors import ConfigurationError
from prorl_mq.process import redis_server
from prorl_mq.schema import rendezvous
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from slurm import node_state
from slurm.servers import certificates
from slurm.servers.certificates import authority, issue
from slurm.servers.queue_server import ADMIN, ROLES, RedisTask

pytestmark = [pytest.mark.anyio, pytest.mark.process]


def about(certificate: Path, *what: str) -> str:
    argv = ["openssl", "x509", "-noout", "-in", str(certificate), *what]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisTask]:
    monkeypatch.setenv("PRORL_STATE", str(tmp_path / "state"))
    (tmp_path / "shared" / "redis").mkdir(parents=True, exist_ok=True)
    (tmp_path / "state").mkdir(mode=0o700)
    given = argparse.Namespace(shared=tmp_path / "shared", interface="lo", tls=True, options=[])
    task = RedisTask(given)
    process = await task._start()
    try:
        yield task
    finally:
        await asyncio.to_thread(redis_server.stop, process)


async def pinged(file: Path) -> bool:
    redis = connect(RedisSettings(rendezvous=file), connections=1)
    try:
        return bool(await ask(redis, "PING"))
    finally:
        await redis.aclose()


async def test_who_knows_a_password_but_shows_no_certificate_is_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, monkeypatch):
        files = tmp_path / "shared" / "rendezvous"
        for role in ("worker", ADMIN):
            assert await pinged(files / f"{role}.json"), "the control"
        for role in (*ROLES, ADMIN):
            assert (files / f"{role}.pem").stat().st_mode & 0o077 == 0
        assert about(files / "worker.pem", "-checkend", str(47 * 3600)) == "Certificate will not expire\n"
        with pytest.raises(subprocess.CalledProcessError):
            about(files / "worker.pem", "-checkend", str(49 * 3600))
        place = rendezvous.read(files / "worker.json")
        assert place.url.startswith("rediss://")
        foreign = tmp_path / "foreign"
        authority(foreign)
        issue(foreign, "worker", tmp_path / "foreign.pem")
        for name, client in (("none", None), ("foreign", "foreign.pem")):
            rendezvous.publish(tmp_path / f"{name}.json", msgspec.structs.replace(place, client=client))
            with pytest.raises((ConnectionError, OSError)):
                await pinged(tmp_path / f"{name}.json")


async def test_certificates_and_their_authority_are_renewed_while_connections_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, monkeypatch) as task:
        file = tmp_path / "shared" / "rendezvous" / "worker.json"
        place = rendezvous.read(file)
        host, port = place.url.removeprefix("rediss://").split(":")
        before = shown(host, int(port), place)
        redis = connect(RedisSettings(rendezvous=file), connections=1)
        connection = int(await ask(redis, "CLIENT", "ID"))
        await task.renewed()
        assert shown(host, int(port), rendezvous.read(file)) != before
        assert int(await ask(redis, "CLIENT", "ID")) == connection
        monkeypatch.setattr(certificates, "CA_DAYS", 61)  # half of the authority's time is over
        await task.renewed()
        assert int(await ask(redis, "CLIENT", "ID")) == connection
        assert rendezvous.read(file).ca.count("BEGIN") == 2  # type: ignore[union-attr]
        await redis.connection_pool.disconnect()
        assert int(await ask(redis, "CLIENT", "ID")) != connection, "the same object, with the new certificates"
        await redis.aclose()
        assert await pinged(file)


@pytest.mark.parametrize("kept", [True, False])
async def test_new_connections_need_no_shared_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """What was read last holds. The control: a certificate that is read where it lies."""
    if not kept:
        monkeypatch.setattr(rendezvous, "_kept", str)
    async with serving(tmp_path, monkeypatch):
        there, away = tmp_path / "shared" / "rendezvous", tmp_path / "away"
        assert await pinged(there / "worker.json")
        there.rename(away)
        if kept:
            assert await pinged(there / "worker.json")
        else:
            with pytest.raises((ConnectionError, OSError)):
                await pinged(there / "worker.json")


@pytest.mark.parametrize("guarded", [True, False])
def test_two_who_issue_one_certificate_leave_one_with_its_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The control gives both the same names for what they make."""
    authority(tmp_path / "tls")
    into, made, race = tmp_path / "worker.pem", certificates._openssl, [True]

    def slow(*words: str | int | Path) -> None:
        """The other one issues its own between this one's key and its certificate."""
        made(*words)
        if words[0] == "req" and race.pop():
            race.append(False)
            issue(tmp_path / "tls", "worker", into)

    @contextlib.contextmanager
    def shared(file: Path) -> Iterator[list[Path]]:
        yield [file.with_name(f".{file.name}.{number}") for number in range(4)]

    monkeypatch.setattr(certificates, "_openssl", slow)
    if not guarded:
        monkeypatch.setattr(certificates, "_beside", shared)
        with pytest.raises((OSError, ConfigurationError)):
            issue(tmp_path / "tls", "worker", into)
        return
    issue(tmp_path / "tls", "worker", into)
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(into)
    assert into.stat().st_mode & 0o077 == 0
    assert {each.name for each in tmp_path.iterdir()} == {"tls", "worker.pem"}


@pytest.mark.parametrize("limit", [0, 100])
@pytest.mark.parametrize("guarded", [True, False])
def test_where_files_may_not_grow_the_file_itself_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, guarded: bool
) -> None:
    """RLIMIT_FSIZE, which a batch system may set, holds for memory too. The control writes as if it did not."""
    if not guarded:
        monkeypatch.setattr(rendezvous, "_written", lambda memory, content: os.write(memory, content) >= 0)
    (tmp_path / "client.pem").write_bytes(content := b"key" * 100)
    rendezvous.publish(tmp_path / "place.json", rendezvous.Place(url="rediss://host:1", client="client.pem"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        client = rendezvous.read(tmp_path / "place.json").client
    except OSError:
        client = None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (client is not None and Path(client).read_bytes() == content) == guarded


def shown(host: str, port: int, place: rendezvous.Place) -> str:
    """The server's certificate."""
    context = ssl.create_default_context(cadata=place.ca)
    context.load_cert_chain(place.client or "")
    with socket.create_connection((host, port)) as plain, context.wrap_socket(plain, server_hostname=host) as sock:
        return ssl.DER_cert_to_PEM_cert(sock.getpeercert(binary_form=True) or b"")


def test_a_node_without_a_server_that_speaks_tls_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PRORL_STATE", str(tmp_path))
    given = argparse.Namespace(shared=tmp_path, interface="lo", tls=True, options=[])
    with pytest.raises(ConfigurationError, match=r"install one on this node .* or set `tls = false`"):
        RedisTask(given)


@pytest.mark.parametrize("place", ["tls", "rendezvous"])
async def test_a_directory_that_another_put_in_the_place_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    theirs = tmp_path / "shared" / place
    theirs.mkdir(parents=True)
    authority(theirs)
    theirs.chmod(0o755)  # so that we can read it
    with pytest.raises(ConfigurationError, match=rf"{place} belongs to another user, or is open to others"):
        async with serving(tmp_path, monkeypatch):
            pass
    assert not list(theirs.glob("*.json"))


async def test_control_the_authority_in_such_a_directory_would_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "shared" / "tls"
    theirs.mkdir(parents=True)
    trusted = authority(theirs)
    theirs.chmod(0o755)

    def made(path: Path, _: int) -> Path:
        path.mkdir(exist_ok=True)
        return path

    monkeypatch.setattr("slurm.node_state.private", made)
    async with serving(tmp_path, monkeypatch):
        assert rendezvous.read(tmp_path / "shared" / "rendezvous" / "worker.json").ca == trusted


def test_a_directory_of_another_user_is_refused_though_it_is_shut(tmp_path: Path) -> None:
    assert node_state.private(tmp_path / "own", os.getuid()).stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        node_state.private(tmp_path / "own", os.getuid() + 1)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        node_state.private(tmp_path / "link", os.getuid())
