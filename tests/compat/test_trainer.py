"""A trainer that knows only these routes gets every answer while the service is killed under it, twice."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.process.ports import free_port
from prorl_mq.schema.messages import Stage
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply, ReplyFunction
from tests.agent.chat import MARKERS, TOOLED, call, tokenizer
from tests.chaos.conftest import world
from tests.compat.test_outcomes import samples
from tests.compat.trainer import Trainer
from tests.support.service import store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]
JOBS = 200
KILLS = (JOBS // 4, JOBS // 2)
SUM = re.compile(r"\d+(?: [+-] \d+)+(?= =)")
__all__ = ["world"]


def instance(seed: int) -> dict[str, Any]:
    """A sum; every tenth is to be worked out with bash, in a sandbox."""
    tools = ["execute_bash", "finish"] if seed % 10 == 0 else False
    place = {"name": "chain_sum", "seed": seed, "size": 1, "tools": tools}
    return {"data_source": "reasoning_gym", "instance_id": f"sum-{seed}", "trajectory_id": seed % 4, **place}


def solver(model: Any) -> ReplyFunction:
    """A policy that is right where the sum is even, and uses bash where it is offered."""

    def say(text: str) -> Reply:
        return Reply(ids=model.encode(text + "<|im_end|>", add_special_tokens=False), finish_reason="stop")

    def reply(prompt_ids: Sequence[int], _: FakeSampling) -> Reply:
        said = model.decode(prompt_ids)
        if not SUM.search(said):
            return say("what?")  # a worker finds out what the server speaks
        asked = SUM.findall(said)[-1]
        if "execute_bash" not in said:
            return say(f"<answer>{claimed(asked)}</answer>")
        if "<tool_response>" not in said.rpartition(asked)[2]:
            return say(call("execute_bash", f'{{"command": "echo $(({asked}))"}}'))
        return say(call("finish", f'{{"message": "{claimed(asked)}"}}'))

    return reply


def value(asked: str) -> int:
    return sum(int(part) for part in asked.replace("- ", "-").replace("+ ", "").split())


def claimed(asked: str) -> int:
    return value(asked) + value(asked) % 2


class Service:
    """What is killed: everything but the trainer and its own inference server."""

    def __init__(self, world: World, port: int, model: Path) -> None:
        self.world, self.port, self.model = world, port, model

    def start(self) -> None:
        self.world.start_redis()
        self.world.start_compat(self.port)
        for stage in Stage:
            self.world.start_worker(stage, 0, "--tokenizer", str(self.model))

    def kill(self) -> None:
        for name in [*self.world.apis, *self.world.workers]:
            self.world.kill(name)
        self.world.kill_redis()


async def known(world: World, within_s: float = 120.0) -> None:
    """Workers announce what they can run."""
    async with store_of(world) as store:

        async def announced() -> bool:
            return bool(await store.read("HLEN", store.keys.schemas))

        await until(announced, within_s=within_s)


async def test_two_hundred_jobs_are_answered_rightly_while_the_service_dies_twice(world: World, tmp_path: Path) -> None:
    model = tokenizer(TOOLED, MARKERS)
    model.save_pretrained(tmp_path)
    world.handlers, world.sandbox, world.slots = "reasoning_gym", "bubblewrap", 16
    service, kills = Service(world, free_port(), tmp_path), list(KILLS)

    def seen(count: int) -> None:
        if kills and count >= kills[0]:
            kills.pop(0)
            service.kill()
            service.start()

    service.start()
    async with FakeBackend(reply=solver(model), latency_ms=150) as backend:
        await known(world)
        sampling = {"temperature": 1.0, "max_iterations": 6, "max_model_len": 16384, "token_level_generation": True}
        trainer = Trainer(f"http://127.0.0.1:{service.port}", sampling=sampling, seen=seen)
        await trainer._back()
        assert (await trainer.http.post("/clear_llm_server")).status_code == 200
        assert (await trainer.http.post("/add_llm_server", json={"address": backend.address})).status_code == 200
        async with asyncio.timeout(500):
            await trainer.step([instance(seed) for seed in range(JOBS)])
        await trainer.http.aclose()
    assert (kills, len(trainer.answers)) == ([], JOBS)
    for name, answer in trainer.answers.items():
        check(name, answer, model.decode)
    assert max(trainer.attempts.values()) > 1, "nothing was disturbed"


def check(name: str, answer: dict[str, Any], decode: Callable[[Sequence[int]], str]) -> None:
    """The reward belongs to the sum that was asked, and the tokens say what the policy said."""
    asked = SUM.findall(answer["messages"][1]["content"])[-1]
    assert (answer["success"], answer["error"], answer["instance_id"]) == (True, None, name)
    assert answer["resolved"] == (value(asked) % 2 == 0), answer
    made = samples(answer["messages"])
    assert len(made["response"]) == len(made["mask"]) == len(made["logprobs"])
    sampled = [token for token, mask in zip(made["response"], made["mask"], strict=True) if mask]
    assert str(claimed(asked)) in decode(sampled)
    with_tools = int(name.removeprefix("sum-")) % 10 == 0
    told = ["system", "user", "assistant", *(["tool", "assistant"] * with_tools)]
    assert [each["role"] for each in answer["messages"]] == told
    assert answer["finish"] == with_tools
    assert len(answer["tools"]) == 2 * with_tools
