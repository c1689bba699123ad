"""verl's agent loop: its rows, its lengths, and all rows of a sample where its trainer takes them."""

import abc
import asyncio
import sys
import types
import typing
from typing import Any

import pydantic
import pytest

from prorl_mq.bridges import verl as bridge
from prorl_mq.bridges import verl_tool
from prorl_mq.converters.limits import drawn, fitted
from prorl_mq.converters.verl import outputs
from prorl_mq.errors import NotTrainable
from tests.api.service import SOURCE, Worker
from tests.converters.made import compacted, with_tools
from tests.converters.published import published
from tests.trainers.serving import LOST, question, serving, standard

pytestmark = pytest.mark.anyio
SAMPLED = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture(scope="module")
def theirs() -> types.ModuleType:
    """Its types, register and base class as published; only what would load a tokenizer is left out."""
    foreign = ("DictConfig", "LLMServerClient", "AutoTokenizer", "AutoProcessor", "RLHFDataset")
    given: dict[str, Any] = {
        **dict.fromkeys(foreign, Any),
        "Image": types.SimpleNamespace(Image=Any),
        "torch": types.SimpleNamespace(Tensor=Any),
        "BaseModel": pydantic.BaseModel,
        "Any": Any,
        "Optional": typing.Optional,
        "ABC": abc.ABC,
        "abstractmethod": abc.abstractmethod,
        "create_continuous_token_builder": lambda *_, **__: None,
        "get_event_loop": asyncio.get_running_loop,
        "_agent_loop_registry": {},
        "__name__": __name__,
    }
    wanted = ["AgentLoopMetrics", "AgentLoopOutput", "AgentLoopBase", "DictConfigWrap", "register"]
    found = published("verl/experimental/agent_loop/agent_loop.py", wanted, given)
    module = types.ModuleType("verl_as_published")
    vars(module).update({name: found[name] for name in [*wanted, "_agent_loop_registry"]})
    return module


def config(
    *, prompt: int = 64, response: int = 64, v1: bool = True, mode: str = "token-mean", estimator: str = "grpo"
) -> Any:
    rollout = types.SimpleNamespace(prompt_length=prompt, response_length=response)
    actor = types.SimpleNamespace(rollout=rollout, actor=types.SimpleNamespace(loss_agg_mode=mode))
    algorithm = types.SimpleNamespace(adv_estimator=estimator)
    trainer = types.SimpleNamespace(use_v1=v1)
    return types.SimpleNamespace(actor_rollout_ref=actor, trainer=trainer, algorithm=algorithm)


def loop_of(theirs: Any, url: str, configured: Any, kind: type | None = None, **more: Any) -> Any:
    """As its worker makes one for each sample."""
    plain = dict.fromkeys(("server_manager", "tokenizer", "processor", "hf_model_type", "dataset_cls", "tools"))
    wrapped = {"trainer_config": theirs.DictConfigWrap(configured), "data_config": theirs.DictConfigWrap({})}
    return (kind or bridge.agent_loop(theirs))(**plain, **wrapped, url=url, **more)


async def test_a_standard_row_runs_and_its_answer_is_its_familys(url: str, worker: Worker, theirs: Any) -> None:
    loop = loop_of(theirs, url, config())
    assert isinstance(loop, theirs.AgentLoopBase)
    assert theirs._agent_loop_registry == {"prorl": {"_target_": "prorl_mq.bridges.verl.ProrlAgentLoop"}}
    row = {**standard(0.5), "raw_prompt": standard(0.5)["prompt"], "index": 0, "tools_kwargs": {}, "uid": "u"}
    async with serving(worker, 2):
        [output] = await loop.run(SAMPLED, **row)
        [other] = await loop.run(SAMPLED, data_source=SOURCE, extra_info={"index": 7, **question(0.25)}, raw_prompt=[])
    assert isinstance(output, theirs.AgentLoopOutput)
    assert (output.reward_score, output.prompt_ids, sum(output.response_mask)) == (0.5, [1, 2], 8)
    assert other.reward_score == 0.25
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 8)


@pytest.mark.parametrize(
    ("configured", "rows"),
    [
        (config(), 2),
        (config(estimator="gae"), 2),
        (config(estimator="rloo"), 1),
        (config(mode="seq-mean-token-mean"), 1),
        (config(v1=False), 1),
    ],
    ids=["all", "values of their own", "counts a sample for each row", "averages sequences", "takes one"],
)
async def test_all_rows_of_a_sample_come_where_its_trainer_gives_each_token_one_weight(
    url: str, worker: Worker, theirs: Any, configured: Any, rows: int
) -> None:
    async with serving(worker, 1, trajectory=compacted().trajectory):
        made = await loop_of(theirs, url, configured).run(SAMPLED, **standard(0.5), raw_prompt=[])
    found = made if isinstance(made, list) else [made]
    assert len(found) == rows
    assert {each.reward_score for each in found} == {0.5}
    assert all(each.extra_fields["reward_extra_info"] == {} for each in found)  # read of all but the last


async def test_verl_tool_gets_one_sequence_whatever_its_configuration_says(
    url: str, worker: Worker, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, verl_tool.MODULE, theirs)  # it has verl's names, in its own copy
    monkeypatch.delitem(vars(verl_tool), "ProrlAgentLoop", raising=False)
    kind = verl_tool.ProrlAgentLoop
    assert (kind.__module__, kind.__qualname__) == ("prorl_mq.bridges.verl_tool", "ProrlAgentLoop")
    async with serving(worker, 1, trajectory=compacted().trajectory):
        made = await loop_of(theirs, url, config(), kind).run(SAMPLED, **standard(0.5), raw_prompt=[])
    assert isinstance(made, theirs.AgentLoopOutput)
    assert made.reward_score == 0.5


async def test_a_lost_sample_raises_with_its_cause(url: str, worker: Worker, theirs: Any) -> None:
    async with serving(worker, 2, **LOST):
        with pytest.raises(NotTrainable, match="infra_error"):
            await loop_of(theirs, url, config()).run(SAMPLED, **standard(0.5), raw_prompt=[])


def test_rows_are_cut_to_the_lengths_that_verl_pads_to() -> None:
    [made] = outputs(with_tools(), prompt_length=1, response_length=8)
    assert (made["prompt_ids"], made["response_ids"]) == ([1], [2, 11, 12, 99, 5, 6, 21, 22])
    assert made["response_mask"] == [0, 1, 1, 1, 0, 0, 1, 1]
    assert made["response_logprobs"] == [0.0, -0.5, -1.0, -1.5, 0.0, 0.0, -0.5, -1.0]
    assert made["extra_fields"]["truncated_by"] == "length"
    [short] = outputs(with_tools(), prompt_length=64, response_length=5)
    assert short["response_ids"] == [11, 12, 99]  # what follows was not sampled


def test_a_row_without_a_sampled_token_in_the_lengths_is_left_out_and_shares_are_of_the_rest() -> None:
    rows = fitted(compacted(), prompt_length=2, response_length=3)
    assert [(row.row.row, row.share) for row in rows] == [(0, 0.6), (1, 0.4)]
    assert drawn(compacted(), rows) in rows
    with pytest.raises(NotTrainable, match="a prompt of 1 and a response of 1 tokens"):
        fitted(compacted(), prompt_length=1, response_length=1)


def test_limits_of_the_rollout_are_verls_lengths() -> None:
    made = bridge._sampling(SAMPLED, {"prompt_length": 512, "response_length": 4096})
    assert (made.max_tokens, made.max_tokens_per_turn, made.max_context_tokens) == (4096, 4096, 4608)
    assert made.temperature == 0.7
