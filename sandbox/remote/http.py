"""Requests to a sandbox server, and what its answers mean."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import aiohttp
import msgspec

from sandbox.errors import LinkCut, NotNow, SandboxError, SandboxGone, SandboxStartFailed, SandboxUnavailable
from sandbox.remote import messages
from sandbox.remote.access import TOKEN_FILE, ServerAccess
from sandbox.remote.messages import HeartbeatAnswer, HeartbeatBody, Hello, NewSandbox, Refusal, RemoteList, RemoteState
from sandbox.remote.tunnel import carry

CONNECT_S: Final = 5.0
LATER_S: Final = 5.0  # before a server that is away is asked again for a sandbox
LONGEST_S: Final = 300.0  # of what a server may ask for with Retry-After
GONE: Final = "gone"
PASSING: Final = frozenset({404, 408, 425, 429})  # refusals that say nothing about what was asked for
T = TypeVar("T")


class ServerAnswer(NamedTuple):
    """A status with its body."""

    status: int
    body: bytes
    retry_after_s: float

    @property
    def refusal(self) -> Refusal:
        """The reason of an answer that is no success; without a code where it is none of this protocol."""
        try:
            return msgspec.json.decode(self.body, type=Refusal)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return Refusal(error="", message=repr(self.body[:200]))


class RemoteServer:
    """One server. Its connections are shared by all sandboxes of a process, and closed by `aclose`."""

    def __init__(self, access: ServerAccess) -> None:
        self.access = access
        self._session: aiohttp.ClientSession | None = None
        self._hello: Hello | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def hello(self) -> Hello:
        """Its name and protocol; asked once. Raises `SandboxUnavailable` for a server of another protocol."""
        if self._hello is None:
            answer = await self.exchange("GET", "")
            if answer.status == 404 and not answer.refusal.error:
                raise NotNow(f"{self.access.url} has no sandbox server of protocol {messages.PROTOCOL}", LATER_S)
            hello = self._read(answer, Hello)
            if hello.protocol != messages.PROTOCOL:
                raise SandboxUnavailable(
                    f"the sandbox server {self.access.url} speaks protocol {hello.protocol}, and this release "
                    f"{messages.PROTOCOL}: install the release that fits"
                )
            if not messages.SERVER_NAME.fullmatch(hello.name):
                raise self._nonsense(f"its name is {hello.name!r}")
            self._hello = hello
        return self._hello

    async def create(self, name: str, wanted: NewSandbox) -> None:
        """Makes the sandbox of this name, once, however often it is asked for.

        Raises `NotNow` where the server has no room, `LinkCut` where it is away, and `SandboxStartFailed` where it
        cannot make this one.
        """
        body = msgspec.json.encode(wanted)
        if len(body) > messages.BODY_BYTES:
            raise SandboxStartFailed(
                f"no sandbox for {wanted.owner}: its description has {len(body)} bytes, and {messages.BODY_BYTES} are "
                "allowed; upload what is large as a file"
            )
        answer = await self.exchange("PUT", f"/sandboxes/{name}", body)
        if answer.status in {200, 201}:
            return
        told = answer.refusal
        why = f"{answer.status} {told.error}: {told.message[:500]}".strip()
        if told.error in {"unsupported", "start_failed"}:
            raise SandboxStartFailed(f"{self.access.url} made no sandbox for {wanted.owner}: {told.message[:2000]}")
        if 400 <= answer.status < 500 and answer.status not in PASSING:
            raise SandboxStartFailed(f"{self.access.url} made no sandbox for {wanted.owner}: {why}")
        if answer.status == 504:  # of a proxy that waits for less long than this client
            raise LinkCut(f"the sandbox server {self.access.url} does not answer: {why}", reached=True)
        raise NotNow(f"the sandbox server {self.access.url} has no sandbox now ({why})", answer.retry_after_s)

    async def look(self, name: str) -> None:
        """Raises `SandboxGone` if no sandbox of this name is there."""
        self._read(await self.exchange("GET", f"/sandboxes/{name}"), RemoteState, name)

    async def of_service(self, service: str) -> dict[str, str]:
        """The owners of a service's sandboxes, by their names."""
        found: dict[str, str] = {}
        after, more = "", True
        while more:
            listed = self._read(
                await self.exchange("GET", "/sandboxes", query={"service": service, "after": after}), RemoteList
            )
            found |= {each.name: each.owner for each in listed.sandboxes}
            last = max((each.name for each in listed.sandboxes), default="")
            if listed.more and last <= after:
                raise self._nonsense("its list of sandboxes does not end")
            after, more = last, listed.more
        return found

    async def keep(self, names: Sequence[str]) -> Sequence[str]:
        """Says that these are still wanted. Those that are not there."""
        gone: list[str] = []
        for at in range(0, len(names), messages.PAGE):
            body = msgspec.json.encode(HeartbeatBody(names=names[at : at + messages.PAGE]))
            gone += self._read(await self.exchange("POST", "/heartbeat", body), HeartbeatAnswer).gone
        return gone

    async def delete(self, name: str) -> None:
        """Destroys a sandbox; all of it is dead on return. Idempotent. Raises `LinkCut` where the server is away."""
        answer = await self.exchange("DELETE", f"/sandboxes/{name}")
        if answer.status != 204:
            raise self._fault(answer, name)

    async def link(self, name: str, faults: list[str]) -> socket.socket:
        """A stream to the execution server. What shows that the link is none of the protocol joins `faults`."""
        session = self._opened()
        try:
            link = await session.ws_connect(
                f"{self.access.url}{messages.ROOT}/sandboxes/{name}/link",
                headers=self._headers(),
                heartbeat=messages.BEAT_S,
                max_msg_size=messages.MESSAGE_BYTES,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 404:
                await self.look(name)
            raise LinkCut(f"{self.access.url} opens no link to sandbox {name}: {error.status}", unsent=True) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            away = self._away(error)
            if isinstance(away, LinkCut):
                away.unsent = True  # without a link, nothing has gone through it
            raise away from error
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)

        async def carried() -> None:
            if fault := await carry(link, theirs):
                faults.append(fault)

        task = asyncio.create_task(carried(), name=f"link of {name}")
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        return ours

    async def aclose(self) -> None:
        links = list(self._links)
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            secure = ssl.create_default_context() if self.access.url.startswith("https:") else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=secure),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=messages.SLOWEST_S),
                auto_decompress=False,
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access.token()}", "Content-Type": "application/json"}

    async def exchange(
        self, method: str, path: str, body: bytes | None = None, query: dict[str, str] | None = None
    ) -> ServerAnswer:
        """Raises `LinkCut` where no whole answer comes."""
        url = f"{self.access.url}{messages.ROOT}{path}"
        try:
            async with self._opened().request(
                method, url, data=body, params=query, headers=self._headers(), allow_redirects=False
            ) as found:
                data = await found.content.read(messages.BODY_BYTES)
                while len(data) < messages.BODY_BYTES and (more := await found.content.read(messages.BODY_BYTES)):
                    data += more
                if len(data) >= messages.BODY_BYTES:
                    raise self._nonsense(f"an answer of over {messages.BODY_BYTES} bytes")
                return self._admitted(
                    ServerAnswer(found.status, data, _retry_after_s(found.headers.get("Retry-After")))
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(error) from error

    def _admitted(self, answer: ServerAnswer) -> ServerAnswer:
        if answer.status in {401, 403}:
            raise NotNow(
                f"the sandbox server {self.access.url} refuses the token in {self.access.token_file}: put the right "
                f"one there ({TOKEN_FILE}); it is read at each request",
                LATER_S,
            )
        return answer

    def _read(self, answer: ServerAnswer, kind: type[T], name: str = "") -> T:
        if answer.status != 200:
            raise self._fault(answer, name)
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self._nonsense(str(error)) from error

    def _fault(self, answer: ServerAnswer, name: str) -> SandboxError:
        told = answer.refusal
        if answer.status == 404 and told.error == GONE:
            return SandboxGone(f"sandbox {name} of the server {self.access.url} is gone; make a new one")
        if answer.status in {429, 502, 503, 504}:
            return LinkCut(f"the sandbox server {self.access.url} is not ready: {answer.status} {told.message[:500]}")
        return self._nonsense(f"{answer.status} {told.error} {told.message[:500]}")

    def _nonsense(self, said: str) -> SandboxError:
        return SandboxError(f"the sandbox server {self.access.url} gave an answer that is none ({said[:500]})")

    def _away(self, error: Exception) -> SandboxError:
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            return NotNow(
                f"the certificate of the sandbox server {self.access.url} is not trusted: {error}; name the "
                "authority's file in SSL_CERT_FILE",
                LATER_S,
            )
        said = str(error) or type(error).__name__
        unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        reached = isinstance(error, aiohttp.SocketTimeoutError)
        return LinkCut(f"the sandbox server {self.access.url} does not answer: {said}", unsent=unsent, reached=reached)


def _retry_after_s(text: str | None) -> float:
    try:
        return min(LONGEST_S, max(1.0, float(text or LATER_S)))
    except ValueError:  # a date
        return LATER_S
