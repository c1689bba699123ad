"""What a bridge is told reaches the service: whose rows its trainer gets, and what is asked for to evaluate."""

import asyncio
import contextlib
import json
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import verifiers.v1 as vf
from starlette.applications import Starlette
from verifiers.v1.utils.loaders import load_environment

from prorl_mq.bridges import agent_lightning, nemo_gym, rllm, skyrl, slime, trl
from prorl_mq.bridges.verifiers import ProrlEnvConfig
from prorl_mq.schema.messages import Purpose, Task
from tests.api.service import SOURCE, Worker
from tests.converters.made import two_models
from tests.trainers import rllm_interface, test_bridges, test_from_source, test_purposes, test_skyrl, test_verl
from tests.trainers.serving import EXAMPLES, question, row, serving, standard
from tests.trainers.slime_interface import Sample

pytestmark = pytest.mark.anyio
verl_as_published, skyrl_as_published, asked = test_verl.theirs, test_skyrl.theirs, test_purposes.asked
POLICYS, CRITICS = {3, 6, 9}, 8  # trained tokens of one row or the other, or of both


class Place(NamedTuple):
    """What players need."""

    url: str
    theirs: Any
    directory: Path
    patch: pytest.MonkeyPatch


async def by_verl(place: Place, model: str, *, evaluates: bool) -> int:
    del evaluates  # its worker's frame tells: a test of its own
    made = test_verl.loop_of(place.theirs[0], place.url, test_verl.config(), model=model)
    rows = await made.run(test_verl.SAMPLED, **standard(0.5), raw_prompt=[])
    return sum(sum(each.response_mask) for each in rows)


async def by_skyrl(place: Place, model: str, *, evaluates: bool) -> int:
    generator = skyrl.generator(place.theirs[1])(place.url, test_skyrl.configured(wise=True), model=model)
    wanted = test_skyrl.batch(place.theirs[1], 0.5, n=1)
    wanted["batch_metadata"].training_phase = "eval" if evaluates else "train"
    return sum(map(sum, (await generator.generate(wanted))["loss_masks"]))


async def by_trl(place: Place, model: str, *, evaluates: bool) -> int:
    args = types.SimpleNamespace(temperature=1.0, top_p=1.0, max_completion_length=64)
    task = Task(task_id="t", data_source=SOURCE, payload=question(0.5))
    roll_out = trl.rollout_func(place.url, lambda _: task, model=model)
    made = await asyncio.to_thread(roll_out, ["p"], test_bridges.trainer(args, trains=not evaluates))
    return sum(map(sum, made["env_mask"]))


async def by_nemo_gym(place: Place, model: str, *, evaluates: bool) -> int:
    app = nemo_gym.create_app(place.url, model=model)
    async with served(app) as client:
        answer = await client.post("/run", json=test_bridges.of_gym({**row(0.5), "is_validation": evaluates}))
    return sum(len(each.get("generation_token_ids") or ()) for each in answer.json()["response"]["output"])


async def by_agent_lightning(place: Place, model: str, *, evaluates: bool) -> int:
    app = agent_lightning.create_app(place.url, model=model)
    async with served(app) as client:
        [made] = (await client.post("/api/rollouts", json=[{"input": row(0.5), "is_train": not evaluates}])).json()
        where = f"/api/rollouts/{made['rollout_id']}"
        while (await client.get(where)).json()["rollout"]["status"]["state"] not in {"succeeded", "failed"}:
            await asyncio.sleep(0.05)
        told = {"format": "triplet", "event_type": "model_request"}
        events = (await client.get(f"{where}/events", params=told)).json()
    return sum(len(each["data"]["response_token_ids"]) for each in events)


async def by_rllm(place: Place, model: str, *, evaluates: bool) -> int:
    rllm_interface.installed(place.patch)
    engine = types.SimpleNamespace(is_validation=evaluates, max_prompt_length=512, max_response_length=256)
    kind = rllm.workflow(rllm_interface)
    flow: Any = kind(rollout_engine=engine, executor=None, store=None, url=place.url, model=model)
    episode = await flow.run(task=row(0.5), uid="t:0")
    return sum(len(step.model_output.completion_ids) for step in episode.trajectories[0].steps)


async def by_slime(place: Place, model: str, *, evaluates: bool) -> int:
    args = types.SimpleNamespace(prorl_url=place.url, prorl_model=model)
    sample = Sample(group_index=0, index=0, prompt="p", metadata=row(0.5))
    made = await slime.generate(args, sample, test_from_source.PARAMS, evaluation=evaluates)
    return sum(sum(each.loss_mask) for each in made)


async def by_areal(place: Place, model: str, *, evaluates: bool) -> int:
    kind: Any
    kind, gconfig = test_from_source.areals(place.patch, evaluates=evaluates)
    made = await kind(place.url, gconfig, model=model).arun_episode(None, row(0.5))
    return sum(made["loss_mask"])


async def by_verifiers(place: Place, model: str, *, evaluates: bool) -> int:
    path = place.directory / "rows.jsonl"
    path.write_text(json.dumps(row(0.5)))
    place.patch.syspath_prepend(str(EXAMPLES))
    given = {"url": place.url, "model": model, "purpose": "eval" if evaluates else "train"}
    config = {"taskset": {"id": "prorl-rollouts", "path": str(path)}, **given}
    env: Any = load_environment(ProrlEnvConfig.model_validate(config))
    context = types.SimpleNamespace(sampling=vf.SamplingConfig(temperature=0.7, max_tokens=64))
    async with env.serving():
        episode = await env.run_episode(next(iter(env.taskset)), context)
    return sum(sum(branch.sampled_mask) for branch in episode.traces[0].branches)


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a bridge's server, in this process."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://bridge", timeout=90) as client,
    ):
        yield client


Player = Callable[..., Awaitable[int]]
PLAYERS: dict[str, Player] = {
    "verl": by_verl, "SkyRL": by_skyrl, "TRL": by_trl, "NeMo Gym": by_nemo_gym, "Agent Lightning": by_agent_lightning,
    "rLLM": by_rllm, "slime": by_slime, "AReaL": by_areal, "verifiers": by_verifiers,
}  # fmt: skip


@pytest.mark.parametrize("trainer", PLAYERS)
async def test_a_trainer_gets_the_model_that_it_names_and_its_evaluation_is_one(
    url: str,
    worker: Worker,
    trainer: str,
    asked: test_purposes.Asked,
    verl_as_published: Any,
    skyrl_as_published: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sample trains two models; without a name it is the policy's."""
    place = Place(url, (verl_as_published, skyrl_as_published), tmp_path, monkeypatch)
    async with serving(worker, 2, trajectory=two_models().trajectory):
        policys = await PLAYERS[trainer](place, "", evaluates=False)
        critics = await PLAYERS[trainer](place, "critic", evaluates=True)
    assert policys in POLICYS
    assert critics == CRITICS
    assert asked.purposes == [Purpose.TRAIN, Purpose.TRAIN if trainer == "verl" else Purpose.EVAL]
