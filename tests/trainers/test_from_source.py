"""slime and miles, written from their source, get a sample for each row, and AReaL a sequence for each sample."""

import sys
import types
from abc import ABC, abstractmethod
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from prorl_mq.bridges import areal, slime
from prorl_mq.errors import InvalidBatch
from tests.api.service import Worker
from tests.converters.made import compacted
from tests.converters.published import published
from tests.trainers.serving import MATH, row, serving
from tests.trainers.slime_interface import Sample, flattened

pytestmark = pytest.mark.anyio
PARAMS = {"temperature": 1.0, "top_k": -1, "max_new_tokens": 64, "stop": None, "skip_special_tokens": False}


async def test_slime_gets_a_sample_a_row_with_one_rollout_id_and_a_lost_one_is_aborted(
    url: str, worker: Worker
) -> None:
    args = types.SimpleNamespace(prorl_url=url, rollout_max_context_len=None)
    two = [Sample(group_index=0, index=n, prompt="p", metadata=row(0.5)) for n in range(2)]
    bad = Sample(group_index=1, index=2, prompt="p", metadata=row(-1))
    async with serving(worker, 4):
        made = [await slime.generate(args, each, PARAMS) for each in (*two, bad)]
    for each in made[0]:
        assert len(each.loss_mask) == len(each.rollout_log_probs) == each.response_length == 13
        assert (each.rollout_id, each.reward, each.status) == (0, 0.5, Sample.Status.COMPLETED)
        assert (each.tokens[:2], each.weight_versions[-1]) == ([1, 2], "8")
    [lost] = made[2]
    assert (lost.status, lost.reward, lost.loss_mask) == (Sample.Status.ABORTED, None, [0])
    assert "infra_error" in lost.metadata["prorl_lost"]
    assert slime.whole_groups(args, made[:2])
    assert not slime.whole_groups(args, made[2:])


def test_slimes_advantages_are_of_rollouts_however_many_rows_they_have() -> None:
    rows = [(0, 0, 1.0), (0, 0, 1.0), (0, 0, 1.0), (0, 1, 0.0), (1, 2, 0.5), (1, 3, None)]
    samples = [Sample(group_index=g, index=n, rollout_id=n, reward=each) for g, n, each in rows]
    args = types.SimpleNamespace(
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False, reward_key=None
    )
    raw, made = slime.post_process_rewards(args, samples)
    assert made == [0.5, 0.5, 0.5, -0.5, 0.0, 0.0]
    assert raw == [1.0, 1.0, 1.0, 0.0, 0.5, 0.5]


async def test_rows_of_several_lineages_count_as_one_rollout_in_slimes_loss(url: str, worker: Worker) -> None:
    args = types.SimpleNamespace(prorl_url=url)
    async with serving(worker, 1, trajectory=compacted().trajectory):
        made: list[Any] = await slime.generate(args, Sample(group_index=0, index=5, metadata=row(1.0)), PARAMS)
    data = flattened(made)
    assert data["rollout_ids"] == [5, 5]
    assert data["rollout_mask_sums"] == [sum(map(sum, data["loss_masks"]))] * 2
    assert sum(each.metadata["prorl_share"] for each in made) == pytest.approx(1.0)


async def test_a_response_longer_than_slimes_length_is_cut_and_truncated(url: str, worker: Worker) -> None:
    args = types.SimpleNamespace(prorl_url=url)
    async with serving(worker, 1):
        [made] = await slime.generate(args, Sample(index=0, metadata=row(1.0)), {**PARAMS, "max_new_tokens": 6})
    assert (made.tokens[2:], made.loss_mask) == ([11, 12, 99, 5, 6, 21], [1, 1, 1, 0, 0, 1])
    assert made.status is Sample.Status.TRUNCATED


def areals(monkeypatch: pytest.MonkeyPatch, *, evaluates: bool = False) -> tuple[type, Any]:
    """The workflow on AReaL's own base class, and its own configuration of sampling; it runs in a context of theirs."""
    names = {"ABC": ABC, "abstractmethod": abstractmethod, "Any": Any}
    given = {**names, **dict.fromkeys(("InferenceEngine", "InteractionWithTokenLogpReward"), Any)}
    base = published("areal/api/workflow_api.py", ["RolloutWorkflow"], {**given, "__name__": __name__})
    plain = {"dataclass": dataclass, "field": field, "Any": Any, "ClassVar": ClassVar, "__name__": __name__}
    kinds = published("areal/api/cli_args.py", ["GenerationHyperparameters"], plain)
    wanted = ["WorkflowContext", "_current_context", "set", "get"]
    context = published("areal/infra/workflow_context.py", wanted, {**plain, "ContextVar": ContextVar})
    context["set"](context["WorkflowContext"](is_eval=evaluates))
    monkeypatch.setitem(sys.modules, "areal.infra.workflow_context", types.SimpleNamespace(get=context["get"]))  # type: ignore[arg-type]
    monkeypatch.setattr(areal, "tensors", areal.arrays)  # AReaL has torch
    made = areal.workflow(types.SimpleNamespace(RolloutWorkflow=base["RolloutWorkflow"]))
    return made, kinds["GenerationHyperparameters"](max_new_tokens=64, max_tokens=128)


async def test_an_episode_is_one_sequence_with_every_array_aligned(
    url: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any
    kind, gconfig = areals(monkeypatch)
    made = kind(url, gconfig)
    data = {"data_source": MATH, "messages": [{"role": "user", "content": "What is it?"}], "answer": "0.5"}
    async with serving(worker, 3):
        found, lost = [await made.arun_episode(None, each) for each in (data, row(-1))]
    gconfig.ignore_eos = True
    with pytest.raises(InvalidBatch, match="ignore_eos=True"):
        await made.arun_episode(None, data)
    assert lost is None
    assert found["rewards"] == 0.5
    assert {len(each) for name, each in found.items() if name != "rewards"} == {15}
    assert found["input_ids"][:5] == [1, 2, 11, 12, 99]
    assert found["loss_mask"][:7] == [0, 0, 1, 1, 1, 0, 0]
    assert found["logprobs"][:6] == [0.0, 0.0, -0.5, -1.0, -1.5, 0.0]
    assert found["versions"][:9] == [-1, -1, 7, 7, 7, -1, -1, 7, 8]
