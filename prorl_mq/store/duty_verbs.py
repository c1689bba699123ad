"""The verbs of duties on themselves, workers and lanes: one typed method for each script. Each may be sent twice."""

from collections.abc import Sequence

from prorl_mq.schema.messages import Stage
from prorl_mq.store.core import Core, text
from prorl_mq.store.keys import GROUP


class DutyVerbs(Core):
    """Who runs a duty; which workers and lanes are gone."""

    async def hold(self, duty: str, *, lease_ms: int) -> str:
        """Takes or renews the lease on a maintenance duty: `held` or `taken`."""
        return text(await self.call("hold", [self.keys.duty(duty)], {"name": self.name, "lease_ms": lease_ms}))

    async def forget(self, worker: str, streams: Sequence[str]) -> str:
        """Removes a dead worker's names: `forgotten`, `alive` or `pending`."""
        names = [self.keys.workers, self.keys.worker(worker), *streams]
        return text(await self.call("forget", names, {"name": worker, "consumers": GROUP}))

    async def retire_lane(self, node: str) -> str:
        """Removes the lane of a node that is gone: `retired`, or `in use` when a job has come meanwhile."""
        names = [self.keys.lanes, self.keys.stage(Stage.RUN, node)]
        return text(await self.call("retire_lane", names, {"node": node}))
