"""The way over HTTP."""

import asyncio
from collections.abc import Mapping, Sequence
from http.client import responses
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from prorl_mq import local_token
from prorl_mq.client.posts import CONNECT_S, Posts
from prorl_mq.client.transport import Closed, ClosedBatch, ClosedGroup, Unreachable
from prorl_mq.errors import ServiceError
from prorl_mq.process.http_connection import BrokenAnswer, ConnectionDropped, HttpAnswer
from prorl_mq.schema import rendezvous
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, ForkOrder, GroupRecord, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import (
    BatchReport,
    CancelAnswer,
    ForkAnswer,
    PauseAnswer,
    PauseOrder,
    RunMove,
    RunsFound,
    RunStatus,
)
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns

T = TypeVar("T")
ANSWER_S: Final = 60.0
MOVE_S: Final = 7200.0  # in which its jobs are waited for, for an hour at most, and all of it is copied
AT_ONCE_BYTES: Final = 1 << 20  # of a body that is sent in one piece
LONGEST_WAIT_S: Final = 60.0  # as the service allows
AGAIN: Final = frozenset({429, 502, 503, 504})
UNKNOWN: Final = 401
_LACKING: Final = "is not its token: set PRORL_STATE to the state directory of the service, or PRORL_TOKEN to its token"
COLLECTIONS: Final = {"job": "jobs", "group": "groups", "batch": "batches", "run": "runs"}


class _Entry(msgspec.Struct, frozen=True):
    cursor: str
    group: GroupRecord | None = None
    batch: BatchReport | None = None


class _Page(msgspec.Struct, frozen=True):
    results: list[_Entry]


class _Acked(msgspec.Struct, frozen=True):
    acked: int


class _Runs(msgspec.Struct, frozen=True):
    runs: list[RunStatus]
    unavailable: list[str] = []


class _Backend(msgspec.Struct, frozen=True):
    state: str


class HttpDoor:
    """Connections to the API. `uds` reaches one that listens on a Unix socket.

    In place of an address, `url` may be the path of a rendezvous file: it is read again when nobody answers.
    """

    def __init__(self, url: str, *, token: str | None = None, uds: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._file = None if "://" in url else Path(url)
        self._found = self._file is None
        self._token = token
        self._own = token is None and uds is None and self._file is None  # of this machine: its token can be found
        self._uds = uds
        self._http: aiohttp.ClientSession | None = None
        self._posts = Posts(uds)
        self._loop: asyncio.AbstractEventLoop | None = None  # that the session and the connections belong to

    async def submit(self, batch: BatchRequest) -> BatchAccepted:
        return await self._ask("POST", "/v1/batches", BatchAccepted, body=batch)

    async def page(self, run_id: str, after: str, wait_s: float) -> list[Closed]:
        wait_s = min(wait_s, LONGEST_WAIT_S)
        query = {"after": after, "wait": f"{wait_s:g}"}
        path = f"/v1/runs/{quote(run_id, safe='')}/results"
        page = await self._ask("GET", path, _Page, query=query, answer_s=wait_s + ANSWER_S)
        return [closed for entry in page.results if (closed := _closed(entry))]

    async def ack(self, run_id: str, cursors: Sequence[str]) -> int:
        path = f"/v1/runs/{quote(run_id, safe='')}/ack"
        return (await self._ask("POST", path, _Acked, body={"cursors": list(cursors)})).acked

    async def cancel(self, kind: str, name: str) -> CancelAnswer:
        return await self._ask("POST", f"/v1/{COLLECTIONS[kind]}/{quote(name, safe=':')}/cancel", CancelAnswer)

    async def pause(self, kind: str, name: str, order: PauseOrder) -> PauseAnswer:
        path = f"/v1/{COLLECTIONS[kind]}/{quote(name, safe=':')}/pause"
        return await self._ask("POST", path, PauseAnswer, body=order)

    async def resume(self, kind: str, name: str) -> PauseAnswer:
        return await self._ask("POST", f"/v1/{COLLECTIONS[kind]}/{quote(name, safe=':')}/resume", PauseAnswer)

    async def fork(self, name: str, order: ForkOrder) -> ForkAnswer:
        return await self._ask("POST", f"/v1/jobs/{quote(name, safe=':')}/fork", ForkAnswer, body=order)

    async def job(self, name: str) -> JobStatus:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}", JobStatus)

    async def timeline(self, name: str) -> Timeline:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}/timeline", Timeline)

    async def trajectory(self, name: str) -> Trajectory:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}/trajectory", Trajectory)

    async def turns(self, name: str, after: int) -> LoggedTurns:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}/log", LoggedTurns, query={"after": str(after)})

    async def batch(self, name: str) -> BatchStatus:
        return await self._ask("GET", f"/v1/batches/{quote(name, safe=':')}", BatchStatus)

    async def configure_run(self, run_id: str, settings: RunSettings) -> RunStatus:
        return await self._ask("PUT", f"/v1/runs/{quote(run_id, safe='')}", RunStatus, body=settings)

    async def runs(self) -> RunsFound:
        told = await self._ask("GET", "/v1/runs", _Runs)
        return RunsFound(told.runs, told.unavailable)

    async def move(self, method: str, run_id: str, about: Mapping[str, Any], query: Mapping[str, str], /) -> RunMove:
        path = f"/v1/runs/{quote(run_id, safe='')}/move"
        return await self._ask(method, path, RunMove, body=about or None, query=query, answer_s=MOVE_S)

    async def add_backend(
        self,
        pool: str,
        address: str,
        *,
        protocol: str | None,
        model: str | None,
        adapter: str | None,
        limit: int | None,
    ) -> str:
        about = {"address": address, "protocol": protocol, "model": model, "limit": limit}
        if adapter is not None:  # a release before this one refuses the field
            about["adapter"] = adapter
        path = f"/v1/pools/{quote(pool, safe='')}/backends"
        return (await self._ask("POST", path, _Backend, body=about)).state

    async def announce_policy_version(self, pool: str, version: int, mode: str, weights: str | None) -> None:
        path = f"/v1/pools/{quote(pool, safe='')}/policy"
        await self._ask("POST", path, PolicyStatus, body={"version": version, "mode": mode, "weights": weights})

    async def policy(self, pool: str) -> PolicyStatus:
        return await self._ask("GET", f"/v1/pools/{quote(pool, safe='')}/policy", PolicyStatus)

    async def aclose(self) -> None:
        if self._http is not None:
            await self._posts.aclose()
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            connector = aiohttp.UnixConnector(self._uds, limit=0) if self._uds else aiohttp.TCPConnector(limit=0)
            # A proxy of the environment reaches other machines. It is shown neither this one's token nor its prompts.
            near = self._uds is not None or local_token.is_loopback(urlsplit(self.url).hostname or "")
            cookies = aiohttp.DummyCookieJar()
            self._loop = loop
            self._posts = Posts(self._uds)
            self._http = aiohttp.ClientSession(connector=connector, cookie_jar=cookies, trust_env=not near)
        return self._http

    def _find(self) -> None:
        """Reads the rendezvous, if there is one, before the first call and after one that got no answer."""
        if self._file is None or self._found:
            return
        try:
            place = rendezvous.read(self._file)
        except OSError as error:
            raise Unreachable(
                f"the rendezvous {self._file} cannot be read ({error.strerror}): is it running?"
            ) from None
        self.url, self._token, self._found = place.url.rstrip("/"), place.secret or self._token, True

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
    ) -> T:
        self._find()
        if self._own and self._token is None:
            self._token = local_token.found(self.url)
        content = None if body is None else msgspec.json.encode(body)
        target = f"{self.url}{path}?{urlencode(query)}" if query else self.url + path
        session = self._session()
        try:
            answer = None
            if method == "POST" and len(content or b"") <= AT_ONCE_BYTES:
                answer = await self._posts.post(target, content or b"", token=self._token, answer_s=answer_s)
            if answer is None:
                answer = await self._general(session, method, target, content, answer_s)
        except (TimeoutError, aiohttp.ClientError, OSError, ConnectionDropped, BrokenAnswer) as error:
            self._found = self._file is None
            said = str(error) or type(error).__name__
            raise Unreachable(f"{self.url} does not answer ({said}): is it running?") from None
        if answer.status == UNKNOWN and self._own:
            if (found := local_token.found(self.url)) not in {None, self._token}:  # the service has started again
                self._token = found
                return await self._ask(method, path, kind, body=body, query=query, answer_s=answer_s)
            if local_token.is_loopback(urlsplit(self.url).hostname or ""):
                raise _fault(answer, f"; {local_token.place().absolute()} {_LACKING}")
        if answer.status // 100 != 2:
            raise _fault(answer)
        try:
            return msgspec.msgpack.decode(answer.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ServiceError(f"{method} {path}: {self.url} answered something else: {error}") from None

    async def _general(
        self, session: aiohttp.ClientSession, method: str, target: str, content: bytes | None, answer_s: float
    ) -> HttpAnswer:
        headers = {"Accept": "application/msgpack"}
        headers |= {} if content is None else {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with session.request(
            method,
            URL(target, encoded=True),
            data=None if content is None else _content(content),
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=answer_s),
            allow_redirects=False,
        ) as answer:
            return HttpAnswer(answer.status, await answer.read(), answer.headers.get("Retry-After", ""))


def _content(body: bytes) -> bytes | BytesIO:
    """A body to send: a large one goes in pieces, so that the caller's event loop does other things in between."""
    return body if len(body) <= AT_ONCE_BYTES else BytesIO(body)


def _closed(entry: _Entry) -> Closed | None:
    if entry.batch is not None:
        return ClosedBatch(entry.cursor, entry.batch)
    return ClosedGroup(entry.cursor, entry.group) if entry.group is not None else None


def _fault(answer: HttpAnswer, more: str = "") -> ServiceError:
    detail = f"{answer.status} {responses.get(answer.status, '')}"
    try:
        detail = str(msgspec.json.decode(answer.body)["detail"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        detail = f"{detail}: {answer.body[:200].decode(errors='replace')}"
    if answer.status not in AGAIN:
        return ServiceError(detail + more, status=answer.status)
    said = answer.retry_after
    return Unreachable(detail, status=answer.status, retry_after_s=float(said) if said.isdigit() else None)
