"""The supervisor of `prorl-slurm scale`: observes, decides, acts, and waits.

What it knows is in Slurm, in Redis and on shared storage. While one watches, others stand by.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, ProrlError, RedisUnavailable
from prorl_mq.process.crews.crew import Stopping, say
from prorl_mq.store.server.faults import RedisError
from slurm import commands, demand
from slurm.deployed import store_of, tasks
from slurm.scaling import FAILURES, Memory, ScalingPlan, decide, failing, named, servers
from slurm.script import array_script, backend_script, scripts, watch_script
from slurm.spec import WATCH, Deployment
from slurm.supervisor import places
from slurm.supervisor.history import DeploymentHistory
from slurm.supervisor.lock import Busy, Superseded
from slurm.tasks import SlurmTask

BEHIND: Final = 2  # jobs of the chain that wait, or stand by, behind the one that acts
PROVEN_S: Final = 20.0  # one that has acted for so long shows that the chain's jobs do not fail at their start


class Watch:
    """One supervisor."""

    def __init__(self, deployment: Callable[[], Deployment], *, job: str = "") -> None:
        """`job` is its own, where it is one. The deployment is asked for at each look."""
        self._asked = deployment
        self._deployment = deployment()
        self._job = job
        self._lock = places.lock(self._deployment, job)
        self._history = DeploymentHistory(places.directory(self._deployment.shared), places.name(job))
        self._held = False
        self._since = 0.0  # when it took the lock
        self._ended = False  # the chain was, by somebody's hand
        self._memory: Memory = {}
        self._said: dict[str, str] = {}
        self.refused: list[str] = []  # by Slurm, in the last look

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
            except Exception as error:  # Slurm does not answer, the shared storage is away: it must outlive anything
                what = "" if isinstance(error, ProrlError | OSError) else f"{type(error).__name__}: "
                say(f"scale: {what}{error}; trying again in {every_s} s")
            try:
                async with asyncio.timeout(every_s):
                    await stopping.asked.wait()
            except TimeoutError:
                continue

    async def look(self) -> dict[str, ScalingPlan]:
        """One look, and what followed from it; nothing, where another supervisor watches. Servers are asked for
        whether Redis answers or not.
        """
        deployment = self._deployment = self._asked()
        self.refused = []
        try:
            if not await self._mine():
                return {}
            here = await tasks(deployment)
            await self._succession(here)
            await self._record(here)
            await self._servers(here)
            plans = await self._plans(here)
            for array, plan in plans.items():
                await self._act(array, plan)
        except Superseded as error:
            self._held = False
            self._tell("lock", str(error))
            return {}
        return plans

    async def _record(self, here: Sequence[SlurmTask]) -> None:
        """Into the history what has changed; without it, the supervisor does what it does."""
        try:
            self._history.look(here, await commands.nodes(), frozenset(named(self._deployment)))
        except (OSError, commands.SlurmRefused) as error:
            self._tell("history", f"cannot be written: {error}")
        else:
            self._tell("history", "")

    async def _mine(self) -> bool:
        left = await self._lock.hold()
        if left is not None and not self._held:
            if left.holder or self._job:
                before = f" from {left.holder}" if left.holder else ""
                self._keep(WATCH, f"{places.name(self._job)} takes over{before} (term {left.term + 1})")
            self._memory = {array: monotonic() - low_s for array, low_s in left.low_s.items()}
            self._since = monotonic()
        self._held = left is not None
        self._ended = left is not None and left.ended
        why = "another supervisor is active; standing by"
        if self._lock.ended:
            why = "somebody has ended it by `drain` or `cancel`: nothing is asked for until the next `submit`"
        self._tell("lock", "" if self._held else why)
        return self._held

    async def _leave(self) -> None:
        """Ends its hold, so that whoever looks next does not stand by for it."""
        if self._held:
            with contextlib.suppress(Busy, OSError):
                await self._lock.leave({array: monotonic() - since for array, since in self._memory.items()})

    async def _plans(self, here: Sequence[SlurmTask]) -> dict[str, ScalingPlan]:
        """None while Redis does not answer: how much work there is, is not known."""
        try:
            async with store_of(self._deployment, "ingress", name=f"{socket.gethostname()}:{os.getpid()}") as store:
                seen = await demand.read(store)
        except (ConfigurationError, RedisUnavailable, RedisError) as error:
            self._tell("redis", str(error))
            return {}
        self._tell("redis", "")
        return decide(self._deployment, here, seen, self._memory, monotonic())

    async def _succession(self, here: Sequence[SlurmTask]) -> None:
        """While this one holds the lock, there are two more of the chain. Each begins before the end of the one before
        it, or at it, whatever ends it; so one that ends before it has submitted any does not end the chain.
        """
        if self._deployment.watch is None or self._ended:
            return
        others = [task for task in here if task.job == WATCH and task.id != self._job]
        proven = monotonic() - self._since > PROVEN_S
        held = sum(task.held for task in others) >= FAILURES
        fails = held or (WATCH in failing(self._deployment, others) and not proven)
        why = "its jobs fail at their start, or are held back: see `status`; no successor is submitted"
        self._tell("the chain", why if fails else "")
        behind = [task.id for task in others if task.coming or task.working]
        if not fails and len(behind) < BEHIND:
            text = watch_script(self._deployment, after=max(behind, key=int, default=self._job)).text
            await self._command(WATCH, partial(commands.submit, text), "a successor is {}")

    async def _servers(self, here: Sequence[SlurmTask]) -> None:
        """Redis, API and backends that have ended, by their time limit or otherwise, are asked for again; before a
        limit, early enough that the next one takes over.
        """
        lacking, fail = servers(self._deployment, here), failing(self._deployment, here)
        for script in scripts(self._deployment):
            why = "fails at its start, or is held back: see `status`; it is asked for again once these tasks are gone"
            self._tell(f"the server {script.name}", why if script.name in fail else "")
            if count := lacking.get(script.name, 0):
                of = script
                if script.name in self._deployment.backends:
                    of = backend_script(self._deployment, script.name, count)
                await self._command(script.name, partial(commands.submit, of.text), "submitted again as {}")

    async def _act(self, array: str, plan: ScalingPlan) -> None:
        if plan.add:
            text = array_script(self._deployment, array, plan.add).text
            await self._command(array, partial(commands.submit, text), f"{plan.add} more as {{}}: {plan.why}")
        if plan.withdraw:
            done = f"{plan.why}; withdrawn before they ran: {' '.join(plan.withdraw)}"
            await self._command(array, partial(commands.cancel, plan.withdraw), done)
        if plan.drain:
            done = f"{plan.why}; draining: {' '.join(plan.drain)}"
            await self._command(array, partial(commands.drain, plan.drain), done)
        if not (plan.add or plan.withdraw or plan.drain):
            self._tell(array, plan.why if "no more are requested" in plan.why else "")

    async def _command(self, about: str, command: Callable[[], Awaitable[str | None]], done: str) -> None:
        """Gives one command as the holder of the lock; `done` says what it did, with Slurm's answer for `{}`. What
        Slurm refuses is told, and stops none of the commands after it. Raises `Superseded`.
        """
        try:
            async with self._lock.acting():
                answer = await command()
        except commands.SlurmRefused as error:
            self.refused.append(f"{about}: {error}")
            self._tell(f"{about}, refused", str(error))
            return
        self._tell(f"{about}, refused", "")
        self._note(about, done.replace("{}", answer or "", 1))

    def _note(self, about: str, text: str) -> None:
        """Says what was done, and keeps it."""
        say(f"scale {about}: {text}")
        self._keep(about, text)

    def _keep(self, about: str, text: str) -> None:
        """Into the history, where there is room."""
        try:
            self._history.add(about, text)
        except OSError as error:
            self._tell("history", f"cannot be written: {error}")

    def _tell(self, about: str, text: str) -> None:
        """Says what lasts once, not at every look."""
        if text and self._said.get(about) != text:
            say(f"scale {about}: {text}")
        self._said[about] = text
