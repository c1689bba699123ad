"""Redis as a job: started on its data, secured by passwords, and then published.

It cannot be reached before its users have their passwords: until then it listens on a Unix socket of this node alone.
"""

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.process import redis_server
from prorl_mq.process.ports import free_port
from prorl_mq.schema import rendezvous
from prorl_mq.schema.rendezvous import Place
from prorl_mq.settings import Setting, add
from prorl_mq.store.server import acl, administration
from prorl_mq.store.server.connection import RedisSettings, connect
from slurm import node_state
from slurm.address import INTERFACE, address_of
from slurm.crew import CRASHES, Stopping, say
from slurm.layout import SHARED, role_file

SETTINGS: Final = (
    SHARED,
    INTERFACE,
    Setting("--tls", "encrypt connections, with certificates of an authority of the deployment's own", alone=True),
    Setting("options", "of the server, after --", nargs="*"),
)
ROLES: Final = ("worker", "eval", "ingress", "viewer")
ADMIN: Final = "admin"  # the file of Redis's own default user, for operators
PORTS_TRIED: Final = 20
LOCK_LOOK_S: Final = 1.0
LOCK_WAIT_S: Final = 120.0  # for the Redis of an earlier run of this job to end


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
        self._address = address_of(given.interface)
        self._binary = (redis_server.installed_binary() or "") if given.tls else redis_server.find_binary()
        if not self._binary:
            raise ConfigurationError("TLS needs a redis-server on PATH: the embedded one is built without it")

    async def run(self, stopping: Stopping) -> int:
        """Until a signal; the code of the task."""
        crashes = 0
        while crashes < CRASHES:
            process = await self._start()
            ended = asyncio.create_task(asyncio.to_thread(process.wait))
            asked = asyncio.create_task(stopping.asked.wait())
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
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
        self._state.mkdir(exist_ok=True, mode=0o700)
        socket = self._state / "redis.sock"
        tls = []
        if self._tls:
            authority(self._certificates)
            tls = issue(self._certificates, self._address, self._state / "tls")
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
                known = Place(url=url, username=place.username, secret=place.secret, ca=place.ca)
                rendezvous.publish(role_file(self._rendezvous, role), known)
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
            places[role] = Place(url="", username=user, secret=secret or secrets.token_urlsafe(32), ca=ca)
        return places


async def serve(given: argparse.Namespace) -> int:
    """Waits for the lock on the data first: an earlier run of the job may live on, cut off from Slurm."""
    task = RedisTask(given)
    with Stopping() as stopping:
        attempts = round(LOCK_WAIT_S / LOCK_LOOK_S)
        for attempt in range(attempts):
            try:
                with redis_server.locked(given.shared / "redis"):
                    return await task.run(stopping)
            except ConfigurationError as error:
                if "another server uses" not in str(error) or attempt == attempts - 1:
                    raise
            await asyncio.sleep(LOCK_LOOK_S)
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm.redis_task", description=__doc__)
    add(parser, SETTINGS, {})
    try:
        return asyncio.run(serve(parser.parse_args(argv)))
    except ProrlError as error:
        print(f"redis task: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1


DAYS: Final = "3650"
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(directory: Path) -> str:
    """The deployment's authority in PEM. It is kept when Redis moves, so that clients need no new one."""
    key, certificate = directory / "ca.key", directory / "ca.pem"
    if not certificate.exists():
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _openssl("req", "-x509", *KEY, "-days", DAYS, "-subj", "/CN=prorl", "-keyout", key, "-out", certificate)
    return certificate.read_text()


def issue(directory: Path, address: str, into: Path) -> list[str]:
    """A key and a certificate for an IP address, on this node, as options of the server."""
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, request, certificate, more = (into / name for name in ("key", "request", "pem", "extensions"))
    more.write_text(f"subjectAltName=IP:{address}\n")
    _openssl("req", *KEY, "-subj", "/CN=redis", "-keyout", key, "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-CA", directory / "ca.pem", "-CAkey", directory / "ca.key",
        "-CAcreateserial", "-CAserial", into / "serial", "-days", DAYS, "-extfile", more, "-out", certificate,
    )  # fmt: skip
    options = {"cert-file": certificate, "key-file": key, "ca-cert-file": directory / "ca.pem"}
    return [word for name, path in options.items() for word in (f"--tls-{name}", str(path))] + [
        "--tls-auth-clients", "no",
    ]  # fmt: skip


def _openssl(*words: str | Path) -> None:
    try:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigurationError("openssl is missing on this node: TLS needs it (Debian: openssl)") from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"openssl {words[0]} failed: {error.stderr.strip()[-300:]}") from None


if __name__ == "__main__":
    sys.exit(main())
