"""A gateway with a scripted policy behind it, and clients that talk to it over its socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from prorl_mq.schema.messages import Sampling
from tests.agent.chat import ScriptedPolicy, tooled
from workers.external.gateway import Gateway
from workers.external.interception import Interceptor
from workers.external.recording import Recording
from workers.handler import OtherModel

TOOL = {
    "name": "bash",
    "description": "Runs a command",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
TOOLS = [{"type": "function", "function": TOOL}]
HELLO = {"role": "user", "content": "Hello"}


class Attempt:
    """One attempt's gateway."""

    def __init__(
        self,
        texts: list[str],
        sampling: Sampling,
        interceptor: Interceptor | None,
        others: Mapping[str, OtherModel],
        policy: ScriptedPolicy | None,
    ) -> None:
        self.policy = policy or ScriptedPolicy(tooled(), texts)
        self.renderer = self.policy.renderer
        self.recording = Recording(self.policy, self.renderer, sampling, "task:0", interceptor, others=others)
        self.gateway = Gateway(self.recording)
        self.headers = {"authorization": f"Bearer {self.gateway.key}"}

    def client(self, door: Path) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(door / "socket"))
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60)


@asynccontextmanager
async def attempt(
    door: Path,
    texts: list[str],
    sampling: Sampling | None = None,
    interceptor: Interceptor | None = None,
    others: Mapping[str, OtherModel] = {},
    policy: ScriptedPolicy | None = None,
) -> AsyncIterator[tuple[Attempt, httpx.AsyncClient]]:
    made = Attempt(texts, sampling or Sampling(), interceptor, others, policy)
    async with made.gateway.listening(door), made.client(door) as client:
        async with asyncio.timeout(60):
            yield made, client
