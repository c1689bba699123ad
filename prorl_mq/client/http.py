"""The way over HTTP."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from prorl_mq.client.transport import Closed, ClosedBatch, ClosedGroup, Unreachable
from prorl_mq.errors import ServiceError
from prorl_mq.schema import rendezvous
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus, GroupRecord, JobStatus
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import BatchReport, CancelAnswer, RunStatus
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory

T = TypeVar("T")
ANSWER_S: Final = 60.0
LONGEST_WAIT_S: Final = 60.0  # as the service allows
AGAIN: Final = frozenset({429, 502, 503, 504})
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


class _Backend(msgspec.Struct, frozen=True):
    state: str


class HttpDoor:
    """One connection pool to the API. `uds` reaches one that listens on a Unix socket.

    In place of an address, `url` may be the path of a rendezvous file: it is read again when nobody answers.
    """

    def __init__(self, url: str, *, token: str | None = None, uds: str | None = None) -> None:
        transport = httpx.AsyncHTTPTransport(uds=uds) if uds else None
        timeout = httpx.Timeout(ANSWER_S, connect=5.0)
        self.url = url.rstrip("/")
        self._file = None if "://" in url else Path(url)
        self._found = self._file is None
        self._token = token
        self._http = httpx.AsyncClient(headers={"Accept": "application/msgpack"}, timeout=timeout, transport=transport)

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

    async def job(self, name: str) -> JobStatus:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}", JobStatus)

    async def timeline(self, name: str) -> Timeline:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}/timeline", Timeline)

    async def trajectory(self, name: str) -> Trajectory:
        return await self._ask("GET", f"/v1/jobs/{quote(name, safe=':')}/trajectory", Trajectory)

    async def batch(self, name: str) -> BatchStatus:
        return await self._ask("GET", f"/v1/batches/{quote(name, safe=':')}", BatchStatus)

    async def configure_run(self, run_id: str, settings: RunSettings) -> RunStatus:
        return await self._ask("PUT", f"/v1/runs/{quote(run_id, safe='')}", RunStatus, body=settings)

    async def runs(self) -> list[RunStatus]:
        return (await self._ask("GET", "/v1/runs", _Runs)).runs

    async def add_backend(
        self, pool: str, address: str, *, protocol: str | None, model: str | None, limit: int | None
    ) -> str:
        about = {"address": address, "protocol": protocol, "model": model, "limit": limit}
        path = f"/v1/pools/{quote(pool, safe='')}/backends"
        return (await self._ask("POST", path, _Backend, body=about)).state

    async def announce_policy_version(self, pool: str, version: int, mode: str, weights: str | None) -> None:
        path = f"/v1/pools/{quote(pool, safe='')}/policy"
        await self._ask("POST", path, PolicyStatus, body={"version": version, "mode": mode, "weights": weights})

    async def policy(self, pool: str) -> PolicyStatus:
        return await self._ask("GET", f"/v1/pools/{quote(pool, safe='')}/policy", PolicyStatus)

    async def aclose(self) -> None:
        await self._http.aclose()

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
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        timeout = httpx.Timeout(answer_s, connect=5.0)
        try:
            answer = await self._http.request(
                method, self.url + path, content=content, headers=headers, params=query, timeout=timeout
            )
        except httpx.TransportError as error:
            self._found = self._file is None
            raise Unreachable(f"{self.url} does not answer ({error or type(error).__name__}): is it running?") from None
        if answer.is_success:
            try:
                return msgspec.msgpack.decode(answer.content, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ServiceError(f"{method} {path}: {self.url} answered something else: {error}") from None
        raise _fault(answer)


def _closed(entry: _Entry) -> Closed | None:
    if entry.batch is not None:
        return ClosedBatch(entry.cursor, entry.batch)
    return ClosedGroup(entry.cursor, entry.group) if entry.group is not None else None


def _fault(answer: httpx.Response) -> ServiceError:
    detail = f"{answer.status_code} {answer.reason_phrase}"
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"{detail}: {answer.text[:200]}"
    if answer.status_code not in AGAIN:
        return ServiceError(detail, status=answer.status_code)
    said = answer.headers.get("retry-after", "")
    return Unreachable(detail, status=answer.status_code, retry_after_s=float(said) if said.isdigit() else None)
