"""Remote sandboxes that no job's record owns any more are destroyed, and the others are kept alive.

Every node looks: they do no harm to each other, and a service lives as long as one of its nodes does. Without any, its
sandboxes end by themselves.
"""

import logging
from pathlib import Path

from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from sandbox.keeper import place
from sandbox.remote.provider import RemoteProvider
from workers.node.sweeping import attempt_in, owns

log = logging.getLogger("workers.node.remote_sweeping")


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
        """Names of the sandboxes destroyed. Those whose owner is no job's attempt are left to their time to live."""
        found = await self._provider.server.of_service(self._store.keys.namespace)
        attempts = {name: attempt for name, text in found.items() if (attempt := attempt_in(text)) is not None}
        holders = await jobs.holders(self._store, [each.ref for each in attempts.values()])
        kept = {name: owns(each, now) for (name, each), now in zip(attempts.items(), holders, strict=True)}
        await self._provider.server.keep([name for name, owned in kept.items() if owned])
        gone = [name for name, owned in kept.items() if not owned]
        for name in gone:
            await self._provider.server.delete(name)
        if gone:
            log.warning("destroyed remote sandboxes that nobody owns: %s", ", ".join(gone))
        return gone
