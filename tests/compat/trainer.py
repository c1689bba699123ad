"""A trainer's client as verl's integration of these routes is: it knows nothing else of the service."""

import asyncio
import hashlib
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx

ATTEMPTS = 3
AT_ONCE = 40


class Trainer:
    """Sends instances, retries what fails under new ids, and keeps the answers."""

    def __init__(self, url: str, *, sampling: dict[str, Any], seen: Callable[[int], None]) -> None:
        self.http = httpx.AsyncClient(
            base_url=url, timeout=180, limits=httpx.Limits(max_connections=AT_ONCE + 8, max_keepalive_connections=0)
        )
        self.sampling = sampling
        self.seen = seen  # told how many answers there are
        self.answers: dict[str, dict[str, Any]] = {}
        self.attempts: dict[str, int] = {}

    async def step(self, instances: list[dict[str, Any]]) -> None:
        """One training step: start, many jobs, stop."""
        assert (await self.http.post("/start")).status_code == 200
        queue = deque(instances)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._work(queue))
        assert (await self.http.post("/stop")).status_code == 200

    async def _work(self, queue: deque[dict[str, Any]]) -> None:
        while queue:
            instance = queue.popleft()
            name = instance["instance_id"]
            self.attempts[name] = self.attempts.get(name, 0) + 1
            digest = hashlib.sha256(f"{name}_{instance['trajectory_id']}".encode()).hexdigest()[:16]
            job_id = f"{digest}_{uuid.uuid4().hex[:8]}"
            body = {"job_id": job_id, "instance": instance, "sampling_params": self.sampling}
            try:
                answer = await self.http.post("/process", json=body)
                found = answer.json() if answer.status_code == 200 else {}
            except httpx.HTTPError:
                found = {}
            if found.get("messages"):
                self.answers[name] = found
                self.seen(len(self.answers))
            elif self.attempts[name] < ATTEMPTS:
                await self._back()
                await self._give_up(job_id)
                queue.append(instance)

    async def _give_up(self, job_id: str) -> None:
        try:
            await self.http.post("/cancel", json={"job_id": job_id})
        except httpx.HTTPError:
            return

    async def _back(self) -> None:
        """Waits for the server to listen again."""
        async with asyncio.timeout(120):
            while True:
                try:
                    await self.http.get("/status")
                except httpx.HTTPError:
                    await asyncio.sleep(0.1)
                else:
                    return
