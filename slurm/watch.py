"""The supervisor of `prorl-slurm scale`: observes, decides, acts, and waits.

It keeps nothing that matters: what it knows is in Redis and in Slurm. While one watches, others stand by.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, ProrlError
from prorl_mq.store.store import Store
from slurm import commands, demand
from slurm.crew import Stopping, say
from slurm.deployed import store_of, tasks
from slurm.scaling import Memory, ScalingPlan, decide, failing, servers
from slurm.script import array_script, backend_script, scripts
from slurm.spec import Deployment
from slurm.tasks import SlurmTask

LEASE_S = 30.0


class Watch:
    """One supervisor."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._duty = f"slurm:{deployment.name}"
        self._held = False
        self._memory: Memory = {}
        self._said: dict[str, str] = {}

    async def run(self, stopping: Stopping, *, once: bool) -> None:
        """Runs until a signal, or for one round. A round that fails is reported, and the next one follows."""
        try:
            if once:
                await self.look()
            else:
                await self._rounds(stopping)
        finally:
            await self._leave()

    async def _rounds(self, stopping: Stopping) -> None:
        every_s = self._deployment.scale.every_s
        while not stopping.asked.is_set():
            try:
                await self.look()
            except ProrlError as error:
                say(f"scale: {error}; trying again in {every_s} s")
            try:
                async with asyncio.timeout(every_s):
                    await stopping.asked.wait()
            except TimeoutError:
                continue

    async def look(self) -> dict[str, ScalingPlan]:
        """One look, and what followed from it; nothing, where another supervisor watches."""
        deployment = self._deployment
        try:
            async with self._store() as store:
                if not await self._mine(store):
                    return {}
                here = await tasks(deployment)
                plans = decide(deployment, here, await demand.read(store), self._memory, monotonic())
        except ConfigurationError as error:  # before its Redis has ever come up
            self._tell("redis", str(error))
            here, plans = await tasks(deployment), {}
        await self._servers(here)
        for array, plan in plans.items():
            await self._act(array, plan)
        return plans

    def _store(self) -> AbstractAsyncContextManager[Store]:
        return store_of(self._deployment, "ingress", name=f"{socket.gethostname()}:{os.getpid()}")

    async def _mine(self, store: Store) -> bool:
        lease_ms = round(1000 * (LEASE_S + self._deployment.scale.every_s))
        self._held = await store.hold(self._duty, lease_ms=lease_ms) == "held"
        self._tell("duty", "" if self._held else "another supervisor is active; standing by")
        return self._held

    async def _leave(self) -> None:
        """Ends its lease, so that whoever looks next does not stand by for it; without Redis it ends by itself."""
        if self._held:
            with contextlib.suppress(ProrlError):
                async with self._store() as store:
                    await store.resign(self._duty)

    async def _servers(self, here: Sequence[SlurmTask]) -> None:
        """Redis, API and backends that have ended, by their time limit or otherwise, are asked for again; before a
        limit, early enough that the next one takes over.
        """
        lacking, fail = servers(self._deployment, here), failing(self._deployment, here)
        for script in scripts(self._deployment):
            why = "fails at its start: see its log; it is asked for again once Slurm has forgotten these tasks"
            self._tell(f"the server {script.name}", why if script.name in fail else "")
            if count := lacking.get(script.name, 0):
                of = script
                if script.name in self._deployment.backends:
                    of = backend_script(self._deployment, script.name, count)
                say(f"scale {script.name}: submitted again as {await commands.submit(of.text)}")

    async def _act(self, array: str, plan: ScalingPlan) -> None:
        if plan.add:
            job = await commands.submit(array_script(self._deployment, array, plan.add).text)
            say(f"scale {array}: {plan.add} more as {job}: {plan.why}")
        if plan.withdraw:
            say(f"scale {array}: {plan.why}; withdrawn before they ran: {' '.join(plan.withdraw)}")
            await commands.cancel(plan.withdraw)
        if plan.drain:
            say(f"scale {array}: {plan.why}; draining: {' '.join(plan.drain)}")
            await commands.drain(plan.drain)
        if not (plan.add or plan.withdraw or plan.drain):
            self._tell(array, plan.why if "no more are requested" in plan.why else "")

    def _tell(self, about: str, text: str) -> None:
        """Says what lasts once, not at every look."""
        if text and self._said.get(about) != text:
            say(f"scale {about}: {text}")
        self._said[about] = text
