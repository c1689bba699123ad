"""Remote sandboxes that no job's record owns any more are destroyed, and the others are kept alive.

Every node looks: they do no harm to each other, and a service lives as long as one of its nodes does. Without any, its
sandboxes end by themselves.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from sandbox.errors import LinkCut, SandboxError
from sandbox.keeper import place
from sandbox.remote.messages import TTL_S
from sandbox.remote.provider import RemoteProvider
from workers.node.sweeping import attempt_in, owns

log = logging.getLogger("workers.node.remote_sweeping")


def pause_s(lease_ms: int) -> float:
    """Seconds between two looks: a lease, where sandboxes live for long enough without one."""
    return min(lease_ms / 1000, TTL_S / 3)


class RemoteSweeping:
    """Looks once a lease, in the node's keeper or, where there is none, in every worker."""

    def __init__(self, store: Store, provider: RemoteProvider, state_dir: Path) -> None:
        self._store = store
        self._provider = provider
        self._place = place.place(state_dir, store.keys.namespace, provider.node)

    async def instead_of_keeper(self) -> None:
        """Sweeps unless a keeper runs."""
        with place.unkept(self._place) as alone:
            if not alone:
                return
        await self.sweep()

    async def sweep(self) -> list[str]:
        """Names of the sandboxes destroyed. Those whose owner is no job's attempt are left to their time to live.

        They are kept alive before Redis is asked, which may be away for longer than that.
        """
        found = await self._provider.server.of_service(self._store.keys.namespace)
        attempts = {name: attempt for name, text in found.items() if (attempt := attempt_in(text)) is not None}
        await self._provider.server.keep(list(attempts))
        holders = await jobs.holders(self._store, [each.ref for each in attempts.values()])
        kept = {name: owns(each, now) for (name, each), now in zip(attempts.items(), holders, strict=True)}
        return await self._destroy([name for name, owned in kept.items() if not owned])

    async def _destroy(self, names: Sequence[str]) -> list[str]:
        """One that cannot be destroyed does not keep the others from it; its error is raised afterwards."""
        gone: list[str] = []
        fault: SandboxError | None = None
        for name in names:
            try:
                await self._provider.server.delete(name)
            except SandboxError as error:
                fault = error
                if isinstance(error, LinkCut):
                    break
            else:
                gone.append(name)
        if gone:
            log.warning("destroyed remote sandboxes that nobody owns: %s", ", ".join(gone))
        if fault is not None:
            raise fault
        return gone
