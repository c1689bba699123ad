"""The cells of a file, and the requests that are sent to them."""

import asyncio
import time
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Meta
from yarl import URL

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Name
from prorl_mq.schema.strict import Misfit, convert

CONNECT_S: Final = 2.0
SILENT_S: Final = 90.0  # between two parts of an answer; a cell answers who waits for results after 60
IDLE_S: Final = 4.0  # an API ends connections that are idle for 5: a request must not meet that
ASKED_S: Final = 5.0  # for an answer that the router itself needs
LOST_S: Final = 1.0  # how long a cell that did not answer is not asked again for others' requests
HOPS: Final = frozenset({
    "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "content-length", "expect",
})  # fmt: skip  # headers of one connection


class CellsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[cells]` with `NAME = "URL of its API"` each: http://HOST:PORT or unix:///SOCKET. `host` is what the router
    listens on.
    """

    cells: Annotated[dict[Name, str], Meta(min_length=1)]
    host: str = "127.0.0.1"


class CellLost(Exception):
    """A cell does not answer; what was sent may have arrived."""

    def __init__(self, cell: "Cell", why: object) -> None:
        super().__init__(f"cell {cell.name} does not answer ({str(why) or type(why).__name__})")
        self.cell = cell


class CellAnswer:
    """An answer that was read whole."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        """None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None

    @property
    def why(self) -> str:
        """The reason that a refusal gives, else its status."""
        said = self.json()
        return str((said.get("detail") if isinstance(said, dict) else None) or self.status)


class Cell:
    """One cell, with connections of its own: what waits for it takes none of another's."""

    def __init__(self, name: str, url: str) -> None:
        """Raises `ConfigurationError`."""
        self.name, self.url = name, url
        self.lost_at = float("-inf")  # when it did not answer, on the monotonic clock
        self._socket = _socket(url)
        if not (self._socket or _is_address(url)):
            raise ConfigurationError(
                f"cell {name}: {url!r} is no address of an API: http://HOST:PORT, https://HOST:PORT or unix:///SOCKET"
            )
        self._base = "http://cell" if self._socket else url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    @property
    def lost(self) -> bool:
        """True shortly after it did not answer."""
        return time.monotonic() - self.lost_at < LOST_S

    async def open(self) -> None:
        kept: dict[str, Any] = {"limit": 0, "keepalive_timeout": IDLE_S}
        connector = aiohttp.UnixConnector(self._socket, **kept) if self._socket else aiohttp.TCPConnector(**kept)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=SILENT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def requested(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request; the answer is read as it comes. `target`: path and query as they were sent. Raises
        `CellLost` until the answer begins.
        """
        assert self._session is not None
        kept = passed(headers)
        try:
            answer = await self._session.request(
                method, URL(self._base + target, encoded=True), headers=kept, data=body or None, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.lost_at = time.monotonic()
            raise CellLost(self, error) from None
        self.lost_at = float("-inf")
        try:
            yield answer
        finally:
            answer.close()

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", *, within_s: float = ASKED_S
    ) -> CellAnswer:
        """A whole answer within a few seconds. Raises `CellLost`."""
        if self.lost:
            raise CellLost(self, "it did not a moment ago")
        try:
            async with asyncio.timeout(within_s), self.requested(method, target, headers, body) as answer:
                return CellAnswer(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.lost_at = time.monotonic()
            raise CellLost(self, error) from None


def passed(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are not of one connection, whose own ones its `Connection` names. Of several
    alike the first counts, as in a cell.
    """
    named = {
        value.strip().lower()
        for name, value in headers.items()
        if name.lower() == "connection"
        for value in value.split(",")
    }
    return {name: value for name, value in list(headers.items())[::-1] if name.lower() not in HOPS | named}


def load(path: Path) -> CellsFile:
    """Raises `ConfigurationError`."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"the file of cells {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the file of cells {path} is no TOML: {error}") from None
    try:
        found = convert(given, CellsFile)
    except Misfit as error:
        form = 'below [cells] each line reads NAME = "http://HOST:PORT"'
        raise ConfigurationError(f"the file of cells {path} is wrong: {error}; {form}") from None
    names: dict[str, str] = {}
    for name, url in found.cells.items():
        if (other := names.setdefault(url.rstrip("/").lower(), name)) != name:
            detail = f"names {url!r} twice, as {other} and as {name}: each cell has an API of its own"
            raise ConfigurationError(f"the file of cells {path} {detail}")
    return found


def _socket(url: str) -> str | None:
    """The path of a Unix socket that an address names."""
    scheme, _, path = url.partition("://")
    return path if scheme == "unix" and path.startswith("/") else None


def _is_address(url: str) -> bool:
    """True for an address over TCP; a path may follow, as a proxy has one for each cell, but no password or query."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or "@" in parts.netloc or set(url) & set(" ?#"))
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and plain
