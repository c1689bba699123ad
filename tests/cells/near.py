"""Cells in this process, and movers that lose requests and answers, or die, at any of them."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import httpx
from msgspec.structs import replace

from api.app import create_app
from api.cells.cell import Cell, CellAnswer, CellLost
from api.cells.directory import Directory
from api.cells.moving import Mover
from api.config import ApiSettings
from prorl_mq.service.fsck.look import look
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import RUN, Queue

TENANTS: Final = {"acme": ("any",), "operators": ("any",), "guest": ()}
FAULTS: Final = ("request lost", "answer lost", "dies")


class Died(Exception):
    """A mover that ended with a request of its own."""


class NearCell(Cell):
    """One cell, whose requests its town may have fail."""

    town: "NearTown"

    def __init__(self, name: str, client: httpx.AsyncClient, queue: Queue) -> None:
        super().__init__(name, "http://127.0.0.1:1")
        self.client, self.queue = client, queue
        self.down = False

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", *, within_s: float = 0
    ) -> CellAnswer:
        fault = self.town.next_fault()
        await self.town.between()
        if self.down or fault == "request lost":
            raise CellLost(self, "it is down")
        answer = await self.client.request(method, target, headers=dict(headers), content=body)
        if fault == "answer lost":
            raise CellLost(self, "its answer is lost")
        if fault == "dies":
            raise Died
        return CellAnswer(answer.status_code, answer.headers, answer.content)


class NearTown:
    """Some cells. All movers count their requests here."""

    def __init__(self) -> None:
        self.cells: dict[str, NearCell] = {}
        self._left, self._fault = -1, ""
        self.asked = 0
        self.between: Callable[[], Awaitable[None]] = nothing  # what others do before each request

    def fail(self, fault: str, *, after: int) -> None:
        """The request after so many others meets the fault."""
        self._left, self._fault = after, fault

    def next_fault(self) -> str:
        self.asked += 1
        self._left -= 1
        return self._fault if self._left == -1 else ""

    def mover(self, tenant: str = "acme", *, of: str = "", run: str = "r") -> Mover:
        """A mover with the rights of a tenant, `of` another one."""
        return Mover(Directory(list(self.cells.values())), run, bearer(tenant), of)

    async def states(self) -> dict[str, str]:
        """Where each cell sees the run."""
        return {
            name: (await cell.client.get("/v1/runs/r/arrival", headers=bearer("acme"))).json()["state"]
            for name, cell in self.cells.items()
        }


async def nothing() -> None:
    """What others do meanwhile, unless a test says."""


def bearer(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(tenant)}"}


def token(tenant: str) -> str:
    return f"the-token-of-{tenant}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@contextlib.asynccontextmanager
async def near(
    settings: RedisSettings,
    names: Sequence[str] = ("a", "b"),
    tenants: Mapping[str, tuple[str, ...] | None] = TENANTS,
) -> AsyncIterator[NearTown]:
    """APIs without duties, on one Redis, for some tenants, each with the backends that it may add."""
    made = NearTown()
    tokens = {tenant: _digest(token(tenant)) for tenant in tenants}
    readers = {tenant: _digest(f"reads-for-{tenant}") for tenant in tenants}
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            place = replace(settings, namespace=f"near-{name}")
            app = create_app(
                ApiSettings(redis=place, tokens=tokens, readers=readers, backends=tenants), maintained=False
            )
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app)
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
            await stack.enter_async_context(client)
            redis = connect(place)
            stack.push_async_callback(redis.aclose)
            queue = Queue(redis, Keys(place.namespace))
            await queue.prepare("n1")
            made.cells[name] = NearCell(name, client, queue)
            made.cells[name].town = made
        yield made


async def waiting(queue: Queue) -> set[str]:
    """Groups of the run that a cell would admit."""
    return {name.decode().rpartition(":")[2] for name in await queue.command("ZRANGE", queue.keys.backlog(RUN), 0, -1)}


async def whole_in(here: NearTown, name: str, groups: set[str]) -> None:
    """The run is in one cell, with these groups, and the other one has a note of it at most."""
    for each in here.cells.values():
        if each.name == name:
            assert await waiting(each.queue) == groups
            known = await each.queue.command("SMEMBERS", each.queue.keys.open_groups(RUN))
            assert {member.decode().rpartition(":")[2] for member in known} == groups
        else:
            left = await each.queue.command("KEYS", f"{each.queue.keys.prefix}*:{RUN}*")
            kinds = {key.decode().removeprefix(each.queue.keys.prefix).partition(":")[0] for key in left}
            assert kinds <= {"away", "placed"}, kinds
        assert (await look(each.queue.store)).violations == []
        assert await each.queue.command("EXISTS", each.queue.keys.arrivals) == 0
