"""The server of a Redis job: started, secured, published, renewed, and handed over."""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, ProrlError, ServerUnfit
from prorl_mq.process import redis_server
from prorl_mq.process.crews.crew import CRASHES, Stopping, say
from prorl_mq.process.ports import free_port
from prorl_mq.schema import rendezvous
from prorl_mq.schema.rendezvous import Place
from prorl_mq.store.server import acl, administration
from prorl_mq.store.server.connection import OUTAGES, RedisSettings, connect
from slurm import node_state
from slurm.address import address_of
from slurm.layout import role_file
from slurm.servers.certificates import authority, issue, trusted
from slurm.servers.redis_data import RedisData, Successor

ROLES: Final = ("worker", "eval", "ingress", "viewer")
ADMIN: Final = "admin"  # the file of Redis's own default user, for operators
PORTS_TRIED: Final = 20
LOOK_S: Final = 0.05
RENEWED_S: Final = 6 * 3600.0
SYNC_MS: Final = 5_000  # for which writers wait at most while the replica catches up
HAND_OVER_S: Final = 15.0
STAY_S: Final = 3.0
COPYING: Final = ("--repl-diskless-sync-delay", "0", "--client-output-buffer-limit", "replica", "1gb", "512mb", "120")


class WarnedStopping(Stopping):
    """Tells Slurm's warning before a limit, SIGUSR1, from the end itself."""

    def __init__(self) -> None:
        super().__init__()
        self.warned = asyncio.Event()

    def on_asked(self) -> None:
        if self.exit_code:
            self.exit_code = 0  # it does not ask to run again
            self.warned.set()
        else:
            super().on_asked()


class RedisTask:
    """One server on the data that count, restarted if it dies; or a replica, until it is handed the work."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._tls: bool = given.tls
        self._options: list[str] = given.options
        self._namespace = os.environ.get("PRORL_NAMESPACE", "prorl")
        self.job = os.environ.get("SLURM_JOB_ID", "")
        self.data = RedisData(given.shared / "redis", self.job)
        self._certificates = given.shared / "tls"
        self._rendezvous = given.shared / "rendezvous"
        self._state = Path(os.environ["PRORL_STATE"]) / f"redis{self.job and f'-{self.job}'}"
        self._lock: int | None = None  # of that directory, for as long as this process lives
        self._socket = self._state / "redis.sock"
        if len(os.fsencode(self._socket)) > redis_server.SOCKET_PATH_LIMIT:  # a long `scratch`
            self._near = tempfile.TemporaryDirectory(prefix="prorl-redis-", dir="/tmp")
            self._socket = Path(self._near.name) / "redis.sock"
        self._address = address_of(given.interface)
        self._port = 0
        self._secrets: dict[str, str] = {}
        self._tried: Successor | None = None  # the last that it was to hand over to
        self._known, self._issued_at = "", 0.0  # what its certificates trust, and since when
        self._binary = (redis_server.installed_binary() or "") if given.tls else redis_server.find_binary()
        if not self._binary:
            raise ConfigurationError(
                "TLS needs a redis-server on PATH, for the embedded one is built without it: install one on this node "
                "(Debian: redis-server), or set `tls = false` in [redis] where nobody else is on the network"
            )

    async def run(self, stopping: WarnedStopping, promoted: "subprocess.Popen[bytes] | None" = None) -> int:
        """Until a signal; the code of the task. `promoted` is its server where that serves already."""
        process = promoted
        crashes = 0
        await asyncio.to_thread(self.data.tidy)
        while crashes < CRASHES:
            process = process or await self._start()
            if await self._served(process, stopping):
                await asyncio.to_thread(redis_server.stop, process)
                shutil.rmtree(self._state, ignore_errors=True)
                return stopping.exit_code
            crashes += 1
            say(f"the Redis server ended with code {process.returncode}; it is restarted with its stored data")
            process = None
        return 1

    async def _served(self, process: "subprocess.Popen[bytes]", stopping: WarnedStopping) -> bool:
        """Until the server's time is over; false where it ends before."""
        ended = asyncio.create_task(asyncio.to_thread(process.wait))
        while not ended.done():
            over = asyncio.create_task(self._over(stopping))
            done, _ = await asyncio.wait({ended, over}, timeout=RENEWED_S, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if not done:
                await self.renewed()
            elif over in done and (await self._hand_over() or stopping.asked.is_set()):
                return True
        return False

    async def follow(self) -> tuple["subprocess.Popen[bytes]", Path]:
        """Starts a replica of the server that the rendezvous names: its process, and the directory of its data. Raises
        `ServerUnfit` where the server refuses; then nothing is left of it.
        """
        primary = await asyncio.to_thread(self.primary_url)
        directory = self.data.fresh()
        async with contextlib.AsyncExitStack() as undone:
            undone.push_async_callback(asyncio.to_thread, self.data.discard, directory)
            process = await self._launch(directory, serves=False)
            undone.push_async_callback(asyncio.to_thread, redis_server.stop, process)
            async with self.admin() as admin:
                refused = await administration.follow(admin, primary, announce=self._address)
            if refused is not None:
                raise ServerUnfit(
                    f"the server refuses to be a replica of {primary}: {refused}. Is one of its options, after `--`, "
                    "in the way?"
                )
            undone.pop_all()
        say(f"follows the Redis at {primary}")
        return process, directory

    def primary_url(self) -> str:
        """The address in the rendezvous."""
        return rendezvous.read(role_file(self._rendezvous, ADMIN)).url

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of its server."""
        return self._address, self._port

    def publish(self) -> None:
        """Names its server to everybody."""
        scheme = "rediss" if self._tls else "redis"
        for role, place in self._places().items():
            url = f"{scheme}://{self._address}:{self._port}"
            rendezvous.publish(role_file(self._rendezvous, role), msgspec.structs.replace(place, url=url))
        say(f"Redis listens on {self._address}:{self._port}")

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[administration.Admin]:
        """A connection of the default user to its server."""
        secret = self._places()[ADMIN].secret
        made = connect(RedisSettings(url=f"unix://{self._socket}", password=secret), connections=1)
        try:
            yield made
        finally:
            await made.aclose()

    async def _start(self) -> "subprocess.Popen[bytes]":
        process = await self._launch(self.data.counted(), serves=True)
        self.publish()
        return process

    async def _launch(self, directory: Path, *, serves: bool) -> "subprocess.Popen[bytes]":
        """A server that has its users, and listens; nobody knows of it."""
        node_state.prepare(self._state.parent, os.getuid())
        node_state.private(self._rendezvous, os.getuid())
        self._state.mkdir(exist_ok=True, mode=0o700)
        self._lock = self._lock or node_state.locked(self._state)
        await asyncio.to_thread(node_state.tidy, self._state.parent, "redis-*")
        socket = self._socket
        tls = [f"--{word}" if number % 2 == 0 else word for number, word in enumerate(await self._certified(serves))]
        options = ["--bind", self._address, "--unixsocket", str(socket), *tls, *COPYING, *self._options]
        process = redis_server.start(self._binary, directory, options)
        try:
            local = RedisSettings(url=f"unix://{socket}")
            await redis_server.answering(local, process, directory)
            admin = connect(local, connections=1)
            try:
                await self._open(admin)
            finally:
                await admin.aclose()
        except BaseException:
            await asyncio.to_thread(redis_server.stop, process)
            raise
        return process

    async def _over(self, stopping: WarnedStopping) -> None:
        """Returns when its time is over: at the end, or after the warning as soon as another can take over, other than
        the one that was tried.
        """
        ready = False
        while not (ready or stopping.asked.is_set()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S * 10):
                    await stopping.asked.wait()
            ready = stopping.warned.is_set() and self.data.announced() not in {None, self._tried}

    async def _hand_over(self) -> bool:
        """Makes the next job's replica the primary, where it has everything; else that one loads the data later. False
        where nothing came of it and this server still serves.
        """
        found = self._tried = self.data.announced()
        if found is None:
            return False
        try:
            async with self.admin() as admin, asyncio.timeout(HAND_OVER_S):
                refused = await administration.hand_over(admin, found.host, found.port, within_ms=SYNC_MS)
                if refused is not None:
                    say(f"not handed over to job {found.job}, this one serves until its end: {refused}")
                    return False
                while (handed := await administration.handed_over(admin)) is None:
                    await asyncio.sleep(LOOK_S)
                if not handed:
                    say(f"not handed over to job {found.job}, this one serves until its end: that one lags behind")
                    return False
                while self.data.current.name != found.directory:
                    await asyncio.sleep(LOOK_S)
            say(f"handed over to job {found.job} at {found.host}:{found.port}")
            await asyncio.sleep(STAY_S)  # who is refused here reads the new address
        except (ProrlError, OSError, *OUTAGES) as error:  # of the shared storage, too
            say(f"not handed over, the next job loads the data: {error or 'it took too long'}")
        return True

    async def trusting(self) -> None:
        """Renews the certificates of a replica where the primary, which connects to it for the hand-over, has newer
        ones. Raises `OSError`.
        """
        if self._tls and (trusted(self._certificates) != self._known or monotonic() > self._issued_at + RENEWED_S):
            await self.renewed(serves=False)

    async def renewed(self, *, serves: bool = True) -> None:
        """New certificates for the server, and for clients where it serves, in place: open connections stay. A failure
        is tried again.
        """
        if not self._tls:
            return
        try:
            options = await self._certified(serves)
            async with self.admin() as admin:
                await administration.certify(admin, options)
            for role, place in self._places().items() if serves else ():
                file = role_file(self._rendezvous, role)
                rendezvous.publish(file, msgspec.structs.replace(place, url=rendezvous.read(file).url))
        except (ProrlError, OSError, *OUTAGES) as error:
            say(f"the certificates were not renewed, the next try is in {RENEWED_S / 3600:g} hours: {error}")

    async def _certified(self, serves: bool) -> list[str]:
        """Certificates for the server, issued now, and for each role where it serves; the server's settings, as names
        and values.
        """
        if not self._tls:
            return []
        return await asyncio.to_thread(self._certify, serves)

    def _certify(self, serves: bool) -> list[str]:
        node_state.private(self._certificates, os.getuid())
        if serves:
            authority(self._certificates)
            for role in (*ROLES, ADMIN):
                issue(self._certificates, role, self._rendezvous / f"{role}.pem")
        self._known, self._issued_at = trusted(self._certificates), monotonic()
        own, client, known = (self._state / f"{name}.pem" for name in ("server", "client", "trusted"))
        issue(self._certificates, "redis", own, address=self._address)
        issue(self._certificates, "redis", client)  # of a replica, towards the primary
        known.write_text(self._known)  # on this node: the shared storage may be away later
        settings = {"tls-cert-file": own, "tls-key-file": own, "tls-ca-cert-file": known}
        settings |= {"tls-client-cert-file": client, "tls-client-key-file": client}
        words = [str(word) for each in settings.items() for word in each]
        return [*words, "tls-auth-clients", "yes", "tls-replication", "yes"]

    async def _open(self, admin: administration.Admin) -> None:
        """Passwords first, then the port. The default user's password closes the door behind us."""
        places = self._places()
        for role in ROLES:
            user = f"{self._namespace}-{role}"
            rules = acl.users(self._namespace)[user].split()
            await administration.let_in(admin, user, rules, places[role].secret or "")
        await administration.close_default_user(admin, places[ADMIN].secret or "")
        for _ in range(PORTS_TRIED):
            self._port = free_port(self._address)
            refused = await administration.listen(admin, self._port, tls=self._tls)
            if refused is None:
                return
            say(f"port {self._port} was taken meanwhile: {refused}")
        raise ConfigurationError(f"no port could be opened on {self._address}")

    def _places(self) -> dict[str, Place]:
        """A secret for each role; those of an earlier start stay, since its clients still hold them."""
        ca = trusted(self._certificates) if self._tls else None
        places = {}
        for role in (*ROLES, ADMIN):
            with contextlib.suppress(OSError):
                self._secrets[role] = rendezvous.read(role_file(self._rendezvous, role)).secret or ""
            secret = self._secrets[role] = self._secrets.get(role) or secrets.token_urlsafe(32)
            user = "default" if role == ADMIN else f"{self._namespace}-{role}"
            client = f"{role}.pem" if self._tls else None
            places[role] = Place(url="", username=user, secret=secret, ca=ca, client=client)
        return places
