"""verifiers' own server serves our environment, and its client gets traces whose branches are the rows."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.server import EnvServer
from verifiers.v1.utils.loaders import load_environment

from prorl_mq.bridges.verifiers import ProrlEnvConfig, trace_of
from prorl_mq.client.rollouts import Rollouts
from prorl_mq.converters.rollout import logprobs
from prorl_mq.schema.messages import Purpose, Task
from tests.api.service import Worker
from tests.converters.made import ALL, compacted
from tests.trainers.serving import EXAMPLES, row, serving, standard

pytestmark = pytest.mark.anyio
ROWS = [row(0.25, "named"), standard(0.5), row(-1, "lost")]


@pytest.fixture(scope="module")
def settings_of_env(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Any]:
    """As a file of prime-rl's gives them; the taskset is found by the name of the example's module."""
    path: Path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        taskset = {"id": "prorl-rollouts", "path": str(path)}
        yield ProrlEnvConfig.model_validate({"taskset": taskset, "url": url})


@pytest.fixture(scope="module")
async def client(settings_of_env: Any) -> AsyncIterator[EnvClient]:
    """Its server, over its socket."""
    server = EnvServer(config=settings_of_env, address="tcp://127.0.0.1:0")
    serves = asyncio.create_task(server.run())
    made = EnvClient(server.address)
    await made.wait_for_server_startup()
    yield made
    await made.close()
    serves.cancel()
    await asyncio.wait({serves})


async def played(client: EnvClient, config: Any, place: int) -> Any:
    tasks = list(load_environment(config).taskset)
    sampling = vf.SamplingConfig(temperature=0.7, max_tokens=64)
    return await client.run(
        EvalClientConfig(base_url="http://127.0.0.1:9/v1"), "m", sampling, tasks[place].data.model_dump()
    )


async def test_an_episode_comes_over_its_wire_with_tokens_and_reward(
    client: EnvClient, settings_of_env: Any, worker: Worker
) -> None:
    async with serving(worker, 2):
        found = [await played(client, settings_of_env, place) for place in range(2)]
    assert [(each.ok, each.traces[0].reward) for each in found] == [(True, 0.25), (True, 0.5)]
    [branch] = found[0].traces[0].branches
    assert (len(branch.token_ids), sum(branch.sampled_mask), branch.logprobs[2:5]) == (15, 8, [-0.5, -1.0, -1.5])


async def test_the_environment_of_an_evaluation_says_so(
    settings_of_env: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration is that of a section of its own; a request does not tell."""
    purposes: list[Purpose] = []
    of = Rollouts.of

    async def noted(self: Rollouts, task: Task, **more: Any) -> Any:
        purposes.append(more["purpose"])
        return await of(self, task, **more)

    monkeypatch.setattr(Rollouts, "of", noted)
    context = SimpleNamespace(sampling=vf.SamplingConfig(temperature=0.7, max_tokens=64))
    async with serving(worker, 2):
        for more in {}, {"purpose": "eval"}:
            config = ProrlEnvConfig.model_validate({**settings_of_env.model_dump(), **more})
            env = load_environment(config)
            async with env.serving():
                episode = await env.run_episode(next(iter(env.taskset)), context)
            assert episode.ok
    assert purposes == [Purpose.TRAIN, Purpose.EVAL]


async def test_a_lost_sample_is_an_error_without_a_trace(
    client: EnvClient, settings_of_env: Any, worker: Worker
) -> None:
    async with serving(worker, 2):
        found = await played(client, settings_of_env, 2)
    assert (found.ok, found.traces) == (False, [])
    assert found.errors[0].type == "NotTrainable"
    assert "infra_error" in found.errors[0].message


async def test_a_client_that_gives_up_ends_the_rollout(client: EnvClient, settings_of_env: Any, worker: Worker) -> None:
    async with asyncio.timeout(100):
        asked = asyncio.create_task(played(client, settings_of_env, 0))
        held = await worker.in_run()
        asked.cancel()
        await worker.stop(held)
        await asyncio.wait({asked})


@pytest.mark.parametrize("case", ALL)
def test_branches_are_the_rows_and_each_token_is_trained_in_one(case: str) -> None:
    found = ALL[case]()
    task = vf.TraceTask(type="t", data=vf.TaskData())
    trace = trace_of(found, task, vf.AgentInfo(config=ProrlEnvConfig.model_fields["agent"].default))
    assert len(trace.branches) == len(found.rows)
    for branch, each in zip(trace.branches, found.rows, strict=True):
        whole = [*each.prompt_ids, *each.response_ids]
        mask = [*[0] * len(each.prompt_ids), *each.loss_mask]
        told = [*[0.0] * len(each.prompt_ids), *logprobs(each)]
        assert branch.token_ids == whole[: len(branch.token_ids)]
        assert branch.sampled_mask == [bool(one) for one in mask[: len(branch.token_ids)]]
        assert not any(mask[len(branch.token_ids) :])
        assert branch.logprobs == told[: len(branch.token_ids)]
    assert trace.is_truncated == (found.trajectory.truncated_by is not None)


def test_a_compacted_rollout_is_one_trace_of_two_branches() -> None:
    task = vf.TraceTask(type="t", data=vf.TaskData())
    trace = trace_of(compacted(), task, vf.AgentInfo(config=ProrlEnvConfig.model_fields["agent"].default))
    assert (trace.num_branches, trace.reward, trace.num_turns) == (2, 0.75, 3)
