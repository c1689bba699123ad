"""Every handler of ProRL Agent, with its rows as its clients send them, over its own routes: rolled out and scored."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_mq.process.ports import free_port
from prorl_mq.schema.messages import Stage
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import FakeSampling, Reply, ReplyFunction
from tests.agent.chat import MARKERS, TOOLED, tokenizer
from tests.chaos.conftest import world
from tests.compat.rows import CASES, asked
from tests.compat.test_outcomes import samples
from tests.compat.test_trainer import known
from tests.handlers.services import answering
from tests.support.world import World
from tests.swe.rows import IMAGES

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]
MARK = re.compile(r"case (\w+)/(right|wrong)")
HANDLERS = "swe,math,code,stem,tool_call,if_eval,gym_entries"
__all__ = ["world"]


def saying(model: Any, prompts: list[str]) -> ReplyFunction:
    """A policy that says the turns of the case that its question names."""

    def reply(prompt_ids: Sequence[int], _: FakeSampling) -> Reply:
        prompt = model.decode(prompt_ids)
        found = MARK.search(prompt)
        if found is None:  # a worker finds out what the server speaks
            return Reply(ids=model.encode("what?<|im_end|>"), finish_reason="stop")
        prompts.append(prompt)
        case, turn = CASES[found[1]], prompt[found.end() :].count("<|im_start|>assistant") - 1
        said = (case.right if found[2] == "right" else case.wrong)[turn]
        return Reply(ids=model.encode(said + "<|im_end|>", add_special_tokens=False), finish_reason="stop")

    return reply


def judge(asked_for: dict[str, Any]) -> Any:
    text = asked_for["messages"][0]["content"]
    answer = next(line for line in text.splitlines() if line.startswith("Candidate's answer: "))
    right = json.loads(answer.partition(": ")[2]) == "3e8 m/s"
    return {"choices": [{"message": {"content": f"VERDICT: {'YES' if right else 'NO'}"}}]}


@pytest.fixture
async def judged() -> AsyncIterator[str]:
    async with answering(judge) as (url, _):
        yield url


def names() -> list[str]:
    """All cases; that of SWE without its image only where this is not CI."""
    built = (IMAGES / "images.json").exists() or bool(os.environ.get("CI"))
    return [name for name in CASES if built or name != "swebench"]


async def test_rows_of_every_handler_are_rolled_out_and_scored(world: World, tmp_path: Path, judged: str) -> None:
    model, prompts = tokenizer(TOOLED, MARKERS), list[str]()
    model.save_pretrained(tmp_path)
    world.handlers, world.sandbox, world.slots = HANDLERS, "bubblewrap", 8
    world.env |= {
        "PRORL_JUDGE_URLS": judged,
        "PRORL_JUDGE_MODEL": "wise",
        "PRORL_SWE_IMAGES": str(IMAGES / "images.json"),
    }
    port = free_port()
    world.start_redis()
    world.start_compat(port)
    for stage in Stage:
        world.start_worker(stage, 0, "--tokenizer", str(tmp_path))
    async with FakeBackend(reply=saying(model, prompts)) as backend:
        await known(world, within_s=240)  # seven families are imported
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=500) as http, asyncio.timeout(500):
            await http.post("/add_llm_server", json={"address": backend.address})
            assert (await http.post("/start")).status_code == 200
            jobs = {
                (name, right): asyncio.create_task(process(http, name, right))
                for name in names()
                for right in (True, False)
            }
            found = {job: await task for job, task in jobs.items()}
            await http.post("/stop")
    rewards = {job: (answer["reward"], answer["resolved"], answer["error"]) for job, answer in found.items()}
    assert rewards == {(name, right): (float(right), right, None) for name, right in jobs}
    assert not [prompt for prompt in prompts if "CANARY" in prompt], "an answer of a row was shown to the policy"
    for (name, right), answer in found.items():
        check(name, answer, CASES[name].right if right else CASES[name].wrong)
    patches = [found[job]["git_patch"] for job in jobs if job[0] == "swebench"]
    assert [patch[:11] for patch in patches] in ([], ["diff --git ", ""])


async def process(http: httpx.AsyncClient, name: str, right: bool) -> dict[str, Any]:
    sampling = {"temperature": 1.0, "max_iterations": 6, "max_model_len": 32768, "token_level_generation": True}
    body = {
        "instance": asked(name, right=right),
        "sampling_params": {**sampling, "is_reasoning_task": CASES[name].single},
    }
    answer = await http.post("/process", json=body)
    assert answer.status_code == 200, (name, answer.text)
    made: dict[str, Any] = answer.json()
    return made


def check(name: str, answer: dict[str, Any], turns: Sequence[str]) -> None:
    """The messages are parsed, as v1's are, and their ids stand in the order in which the model saw them."""
    messages = answer["messages"]
    said = [each for each in messages if each["role"] == "assistant"]
    assert (len(said), answer["success"], answer["finish"], answer["filter"]) == (len(turns), True, True, False), name
    text = " ".join(each["content"] for each in messages)
    assert "<|im_" not in text, (name, text)
    assert "<tool_call>" not in text, (name, text)
    assert [len(each["tool_calls"]) for each in said] == [turn.count("<tool_call>") for turn in turns]
    first = next(place for place, each in enumerate(messages) if each["role"] == "assistant")
    assert [each["role"] for each in messages[:first]] in (["system", "user"], ["user"])
    made = samples([*messages])
    assert made["prompt"] + made["response"] == messages[-1]["input_ids"] + messages[-1]["token_ids"]
    if name == "swebench":
        assert answer["instance_id"] == CASES[name].instance["instance_id"]
    else:
        about = CASES[name].instance["extra_info"]
        assert answer["instance_id"].endswith(f"_{about['name']}_train_{about['index']}")
        assert answer["git_patch"] is None
