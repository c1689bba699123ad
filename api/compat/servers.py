"""The server that each client sees: its started flag, its backends, and the jobs on it."""

import contextlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from api.compat.arrivals import Arrivals
from api.compat.clients import CompatClient
from api.compat.jobs import CompatJobs
from prorl_mq.errors import NotFound
from prorl_mq.schema import addresses
from prorl_mq.schema.ids import JobRef, group_ref
from prorl_mq.schema.intake import Address
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.service import cancel
from prorl_mq.service.backends import Registrar
from prorl_mq.store import groups, jobs, pools, prorl_clients
from prorl_mq.store.pools import BackendInfo
from prorl_mq.store.store import Store


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /status`: the keys of both servers of the contract."""

    status: str = "running"
    running: bool = True
    pending_jobs: int
    jobs: int
    total: int
    init: int
    run: int
    eval: int
    init_queue: int
    run_queue: int
    eval_queue: int
    active_init: int
    active_run: int
    active_eval: int


class Servers:
    """The servers of all clients."""

    def __init__(self, store: Store, arrivals: Arrivals, jobs: CompatJobs, registrar: Registrar) -> None:
        self._store = store
        self._registrar = registrar
        self._arrivals = arrivals
        self._jobs = jobs

    async def running(self, client: CompatClient) -> bool:
        return await prorl_clients.is_started(self._store, client.ref)

    async def start(self, client: CompatClient) -> bool:
        """False if it runs already. What an earlier one left is deleted."""
        if not await prorl_clients.start(self._store, client.ref):
            return False
        await self._jobs.forget_all(client)
        return True

    async def stop(self, client: CompatClient) -> None:
        """Ends the client's jobs, and waits until they are dead."""
        await prorl_clients.stop(self._store, client.ref)
        self._arrivals.stop(client.run)
        with contextlib.suppress(NotFound):
            await cancel.cancel(self._store, "run", client.run)
        await self._jobs.dead(client, await self._jobs.open(client))
        await self._jobs.forget_all(client)

    async def add_backend(self, client: CompatClient, address: str) -> None:
        """Raises `ValueError` for what is no address, `AddressRefused` or `Conflict` for one that it may not add."""
        await self._registrar.add(self._store, client.pool, BackendInfo(address=_address(address)))

    async def clear_backends(self, client: CompatClient) -> None:
        """Jobs under way keep theirs until they end."""
        for backend in await pools.listing(self._store, client.pool):
            with contextlib.suppress(NotFound):
                await pools.remove(self._store, client.pool, backend.address, drain=True)

    async def has_backend(self, client: CompatClient) -> bool:
        return any(each.state == "ready" for each in await pools.listing(self._store, client.pool))

    async def status(self, client: CompatClient) -> ServerStatus:
        names = await self._jobs.open(client)
        refs = await self._newest(client, names)
        found = [job for job in await jobs.read(self._store, refs) if job is not None]
        active = Counter(job.stage for job in found if job.state in {State.LEASED, State.STOPPING})
        waiting = Counter(job.stage for job in found if job.state in {State.QUEUED, State.DELAYED})
        waiting[Stage.INIT] += len(names) - len(found)  # not admitted yet
        return ServerStatus(
            pending_jobs=len(names),
            jobs=len(names),
            total=len(names),
            init=active[Stage.INIT] + waiting[Stage.INIT],
            run=active[Stage.RUN] + waiting[Stage.RUN],
            eval=active[Stage.EVAL] + waiting[Stage.EVAL],
            init_queue=waiting[Stage.INIT],
            run_queue=waiting[Stage.RUN],
            eval_queue=waiting[Stage.EVAL],
            active_init=active[Stage.INIT],
            active_run=active[Stage.RUN],
            active_eval=active[Stage.EVAL],
        )

    async def _newest(self, client: CompatClient, names: Sequence[str]) -> list[JobRef]:
        """The last job of each group: the others were replaced by it."""
        refs = [group_ref(client.run, name) for name in names]
        return [made[-1] for made in (await groups.jobs(self._store, refs)).values() if made]


def _address(given: str) -> str:
    """With or without `/v1`, it is the same backend: the workers find out what it speaks."""
    address = given.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        msgspec.convert(address, Address)
    except msgspec.ValidationError:
        raise ValueError(f"{given[:200]!r} is not an address: addresses begin with http:// or https://") from None
    addresses.parse(address)
    return address
