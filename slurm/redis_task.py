"""Redis as a job: started on its data, secured by passwords, and then published.

It cannot be reached before its users have their passwords: until then it listens on a Unix socket of this node alone.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import redis_server
from prorl_mq.process.ports import free_port
from prorl_mq.schema import rendezvous
from prorl_mq.schema.rendezvous import Place
from prorl_mq.settings import Setting, add
from prorl_mq.store.server import acl, administration
from prorl_mq.store.server.connection import OUTAGES, RedisSettings, connect
from slurm import commands, node_state
from slurm.address import INTERFACE, address_of
from slurm.crew import CRASHES, Stopping, say
from slurm.layout import SHARED, role_file

SETTINGS: Final = (
    SHARED,
    INTERFACE,
    Setting("--tls", "TLS: server and clients show certificates of an authority of the deployment's own", alone=True),
    Setting("options", "of the server, after --", nargs="*"),
)
ROLES: Final = ("worker", "eval", "ingress", "viewer")
ADMIN: Final = "admin"  # the file of Redis's own default user, for operators
PORTS_TRIED: Final = 20
LOCK_LOOK_S: Final = 0.5


class RedisTask:
    """One server on `shared`/redis, restarted if it dies."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._tls: bool = given.tls
        self._options: list[str] = given.options
        self._namespace = os.environ.get("PRORL_NAMESPACE", "prorl")
        self._data = given.shared / "redis"
        self._certificates = given.shared / "tls"
        self._rendezvous = given.shared / "rendezvous"
        self._state = Path(os.environ["PRORL_STATE"]) / "redis"
        self._socket = self._state / "redis.sock"
        if len(os.fsencode(self._socket)) > redis_server.SOCKET_PATH_LIMIT:  # a long `scratch`
            self._near = tempfile.TemporaryDirectory(prefix="prorl-redis-", dir="/tmp")
            self._socket = Path(self._near.name) / "redis.sock"
        self._address = address_of(given.interface)
        self._binary = (redis_server.installed_binary() or "") if given.tls else redis_server.find_binary()
        if not self._binary:
            raise ConfigurationError(
                "TLS needs a redis-server on PATH, for the embedded one is built without it: install one on this node "
                "(Debian: redis-server), or set `tls = false` in [redis] where nobody else is on the network"
            )

    async def run(self, stopping: Stopping) -> int:
        """Until a signal; the code of the task."""
        crashes = 0
        while crashes < CRASHES:
            process = await self._start()
            ended = asyncio.create_task(asyncio.to_thread(process.wait))
            asked = asyncio.create_task(stopping.asked.wait())
            while not (await asyncio.wait({ended, asked}, timeout=RENEWED_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                await self._renewed()
            asked.cancel()
            if stopping.asked.is_set():
                await asyncio.to_thread(redis_server.stop, process)
                await ended
                return stopping.exit_code
            crashes += 1
            say(f"the Redis server ended with code {process.returncode}; it is restarted with its stored data")
        return 1

    async def _start(self) -> "subprocess.Popen[bytes]":
        node_state.prepare(self._state.parent, os.getuid())
        node_state.private(self._rendezvous, os.getuid())
        self._state.mkdir(exist_ok=True, mode=0o700)
        socket = self._socket
        tls = [f"--{word}" if number % 2 == 0 else word for number, word in enumerate(await self._certified())]
        options = ["--bind", self._address, "--unixsocket", str(socket), *tls, *self._options]
        process = redis_server.start(self._binary, self._data, options)
        try:
            local = RedisSettings(url=f"unix://{socket}")
            await redis_server.answering(local, process, self._data)
            admin = connect(local, connections=1)
            try:
                await self._open(admin)
            finally:
                await admin.aclose()
        except BaseException:
            await asyncio.to_thread(redis_server.stop, process)
            raise
        return process

    async def _renewed(self) -> None:
        """New certificates for server and clients, in place: open connections stay. A failure is tried again."""
        if not self._tls:
            return
        try:
            options = await self._certified()
            local = RedisSettings(url=f"unix://{self._socket}", password=self._places()[ADMIN].secret)
            admin = connect(local, connections=1)
            try:
                await administration.certify(admin, options)
            finally:
                await admin.aclose()
            for role, place in self._places().items():
                file = role_file(self._rendezvous, role)
                rendezvous.publish(file, msgspec.structs.replace(place, url=rendezvous.read(file).url))
        except (ProrlError, OSError, *OUTAGES) as error:
            say(f"the certificates were not renewed, the next try is in {RENEWED_S / 3600:g} hours: {error}")

    async def _certified(self) -> list[str]:
        """Certificates for the server and for each role, issued now; the server's settings, as names and values."""
        if not self._tls:
            return []
        return await asyncio.to_thread(self._certify)

    def _certify(self) -> list[str]:
        authority(node_state.private(self._certificates, os.getuid()))
        for role in (*ROLES, ADMIN):
            issue(self._certificates, role, self._rendezvous / f"{role}.pem")
        own, trusted = self._state / "server.pem", self._state / "trusted.pem"
        issue(self._certificates, "redis", own, address=self._address)
        trusted.write_text(authority(self._certificates))  # on this node: the shared storage may be away later
        settings = {"tls-cert-file": own, "tls-key-file": own, "tls-ca-cert-file": trusted}
        return [*(str(word) for each in settings.items() for word in each), "tls-auth-clients", "yes"]

    async def _open(self, admin: administration.Admin) -> None:
        """Passwords first, then the files, then the port. The default user's password closes the door behind us."""
        places = self._places()
        for role in ROLES:
            user = f"{self._namespace}-{role}"
            rules = acl.users(self._namespace)[user].split()
            await administration.let_in(admin, user, rules, places[role].secret or "")
        await administration.close_default_user(admin, places[ADMIN].secret or "")
        for _ in range(PORTS_TRIED):
            port = free_port(self._address)
            for role, place in places.items():
                scheme = "rediss" if self._tls else "redis"
                url = f"{scheme}://{self._address}:{port}"
                rendezvous.publish(role_file(self._rendezvous, role), msgspec.structs.replace(place, url=url))
            refused = await administration.listen(admin, port, tls=self._tls)
            if refused is None:
                say(f"Redis listens on {self._address}:{port}")
                return
            say(f"port {port} was taken meanwhile: {refused}")
        raise ConfigurationError(f"no port could be opened on {self._address}")

    def _places(self) -> dict[str, Place]:
        """A secret for each role; those of an earlier start stay, since its clients still hold them."""
        ca = authority(self._certificates) if self._tls else None
        places = {}
        for role in (*ROLES, ADMIN):
            try:
                secret = rendezvous.read(role_file(self._rendezvous, role)).secret
            except OSError:
                secret = None
            user = "default" if role == ADMIN else f"{self._namespace}-{role}"
            client = f"{role}.pem" if self._tls else None
            secret = secret or secrets.token_urlsafe(32)
            places[role] = Place(url="", username=user, secret=secret, ca=ca, client=client)
        return places


async def serve(given: argparse.Namespace) -> int:
    """Waits for the data first: the job before this one has them until its time is over, and an earlier run of this job
    may live on, cut off from Slurm. Where locks do not reach from node to node, Slurm says whether that one still runs.
    """
    task = RedisTask(given)
    data, own = given.shared / "redis", os.environ.get("SLURM_JOB_ID", "")
    holder, waits = data / "job", False
    with Stopping() as stopping:
        while not stopping.asked.is_set():
            try:
                with redis_server.locked(data):
                    before = holder.read_text() if holder.exists() else ""
                    if before in {"", own} or not await commands.runs(before):
                        holder.write_text(own)
                        return await task.run(stopping)
            except ConfigurationError as error:
                if "another server uses" not in str(error):
                    raise
            if not waits:
                waits = True
                say(f"the Redis before this one uses {data}: this one starts when that one has ended")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOCK_LOOK_S):
                    await stopping.asked.wait()
    return stopping.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm.redis_task", description=__doc__)
    add(parser, SETTINGS, {})
    try:
        return asyncio.run(serve(parser.parse_args(argv)))
    except ProrlError as error:
        print(f"redis task: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1


DAYS: Final = 2  # of a certificate
CA_DAYS: Final = 30  # of the authority; the next one comes at half of it, and both are trusted until the first ends
AUTHORITY: Final = "authority.pem"
LAST: Final = "-----END CERTIFICATE-----\n"
RENEWED_S: Final = 6 * 3600.0
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(directory: Path) -> str:
    """The certificates in PEM that are trusted: the deployment's authority, and the one before it.

    It is kept when Redis moves, so that clients need no new one, until half of its time is over.
    """
    own, trusted = directory / AUTHORITY, directory / "trusted.pem"
    if not own.exists() or _ends(own, CA_DAYS * 43_200):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = own.read_text().partition(LAST)[:2] if own.exists() and not _ends(own, 0) else ()
        new, key = directory / "new.pem", directory / "new.key"
        name = f"/CN=prorl {secrets.token_hex(8)}"
        _openssl("req", "-x509", *KEY, "-days", CA_DAYS, "-subj", name, "-keyout", key, "-out", new)
        trusted.write_text("".join([new.read_text(), *before]))
        _append(new, key)
        new.replace(own)
    return trusted.read_text()


def issue(directory: Path, name: str, into: Path, *, address: str = "") -> None:
    """A file with a certificate and its key, for a server at an IP address or for a client, replaced in one step."""
    key, request, certificate, more = (into.with_name(f".{into.name}.{each}") for each in ("key", "req", "crt", "ext"))
    use = f"extendedKeyUsage=serverAuth\nsubjectAltName=IP:{address}" if address else "extendedKeyUsage=clientAuth"
    more.write_text(f"{use}\n")
    try:
        _openssl("req", *KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", directory / AUTHORITY, "-CAkey", directory / AUTHORITY,
            "-set_serial", f"0x{secrets.token_hex(16)}", "-days", DAYS, "-extfile", more, "-out", certificate,
        )  # fmt: skip
        _append(certificate, key)
        certificate.replace(into)
    finally:
        for each in (key, request, certificate, more):
            each.unlink(missing_ok=True)


def _append(certificate: Path, key: Path) -> None:
    """The key to its certificate: one file, which its owner alone reads, cannot be half of another's."""
    certificate.chmod(0o600)
    with certificate.open("a") as both:
        both.write(key.read_text())
    key.unlink()


def _ends(certificate: Path, within_s: float) -> bool:
    argv = ["openssl", "x509", "-checkend", str(int(within_s)), "-noout", "-in", str(certificate)]
    return subprocess.run(argv, check=False, capture_output=True).returncode != 0


def _openssl(*words: str | int | Path) -> None:
    umask = os.umask(0o077)
    try:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigurationError(
            "openssl is missing on this node: TLS needs it (Debian: openssl), or set `tls = false` in [redis]"
        ) from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"openssl {words[0]} failed: {error.stderr.strip()[-300:]}") from None
    finally:
        os.umask(umask)


if __name__ == "__main__":
    sys.exit(main())
