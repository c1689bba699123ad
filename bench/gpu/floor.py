"""The floor: the same conversations over a bare HTTP client. Bodies are encoded before, answers alone are checked."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
import msgspec

from bench.gpu.handler import Work, messages, tools
from bench.gpu.script import Script
from workers.agent.hermes import Message
from workers.agent.renderer import Renderer
from workers.inference.protocols.vllm_generate import ROUTE


class Exchange(NamedTuple):
    """One turn: a body that is posted, and the ids that must come back."""

    body: bytes
    ids: list[int]


class Timed(NamedTuple):
    """Seconds of all, of each conversation and of each turn."""

    wall_s: float
    conversations: list[float]
    turns: list[float]


def conversation(work: Work, script: Script, renderer: Renderer, result: str) -> list[Exchange]:
    """All turns of one task, where each tool call answers with `result`."""
    prompt, turns = renderer.prompt(messages(work), tools()), list[Exchange]()
    while True:
        said = script.reply(prompt)
        assert said is not None, f"task {work.number}: its prompt does not end where the model begins"
        body = {
            "request_id": f"floor-{work.number}-{len(turns)}", "token_ids": prompt, "model": "policy",
            "sampling_params": {"max_tokens": 1024, "temperature": 1.0, "logprobs": 0},
        }  # fmt: skip
        turns.append(Exchange(msgspec.json.encode(body), said.ids))
        if said.last:
            return turns
        prompt = [*prompt, *said.ids, *renderer.after(said.ids, [Message(role="tool", content=result)], tools())]


async def drive(address: str, conversations: Sequence[Sequence[Exchange]], at_once: int) -> Timed:
    """Always as many under way, until all are done."""
    waiting, whole, turns = list(reversed(conversations)), list[float](), list[float]()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(exchanges: Sequence[Exchange]) -> None:
            began = time.perf_counter()
            for body, ids in exchanges:
                asked = time.perf_counter()
                async with session.post(address + ROUTE, data=body) as response:
                    answer = msgspec.json.decode(await response.read())
                turns.append(time.perf_counter() - asked)
                if response.status != 200 or answer["choices"][0]["token_ids"] != ids:
                    raise RuntimeError(f"the server answered {response.status}: {str(answer)[:200]}")
            whole.append(time.perf_counter() - began)

        async def seat() -> None:
            while waiting:
                await one(waiting.pop())

        began = time.perf_counter()
        await asyncio.gather(*(seat() for _ in range(at_once)))
        return Timed(time.perf_counter() - began, whole, turns)
