"""Columns of v1's rows: what RUN needs is open, what tells the answer reaches EVAL and nobody else."""

import json
import math
from typing import Any

import pytest

from api.compat.tasks import batch, rollout
from prorl_mq.schema.task_schema import Schema, split
from tests.compat.rows import CASES, asked
from workers.handler import Handler
from workers.handlers.code.family import Code
from workers.handlers.math.family import Math
from workers.handlers.prorl.gym_entries import GymEntries
from workers.handlers.prorl.if_eval import IfEval
from workers.handlers.prorl.tool_call import ToolCalls
from workers.handlers.rows import ground_truth
from workers.handlers.stem.family import Stem
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.images import image_of
from workers.handlers.swe.rows import hidden_of, task_of

FAMILIES: list[type[Handler]] = [SoftwareEngineering, Math, Code, Stem, ToolCalls, IfEval, GymEntries]


def parted(instance: dict[str, Any], schema: Schema | None = None) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The data source that an instance goes to, and the open and the sealed part of its payload."""
    call = rollout({"instance": instance, "sampling_params": {}})
    schema = schema or next(each().schema for each in FAMILIES if call.data_source in each().data_sources)
    request = batch(call, schema, run_id="r", name="g", timeout_s=60)
    return (call.data_source, *split(schema, request.groups[0].task))


@pytest.mark.parametrize("name", CASES)
def test_the_answer_of_a_row_is_sealed_and_its_question_open(name: str) -> None:
    source, opened, sealed = parted(asked(name, right=True))
    assert opened.keys() <= {
        "prompt",
        "tools",
        "instance_id",
        "repo",
        "base_commit",
        "version",
        "problem_statement",
        "data_kind",
    }
    assert "CANARY" not in str(opened)
    assert source == {"gym": "reasoning_gym_entry", "gym_old": "reasoning_gym_entry", "rstar": "rStar"}.get(name, name)
    if name != "swebench":
        assert ground_truth(sealed) is not None


def test_a_row_of_swe_names_its_image_and_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All columns that the schema did not name were sealed, the instance's name and repository among them."""
    _, opened, sealed = parted(asked("swebench", right=True))
    monkeypatch.delenv("PRORL_SWE_IMAGES", raising=False)
    monkeypatch.delenv("EVAL_DOCKER_IMAGE_PREFIX", raising=False)
    task = task_of(opened)
    assert image_of(task, {}) == "docker://xingyaoww/sweb.eval.x86_64.cpburnz_s_pathspec-0.12.0"
    assert (task.project, bool(task.base_commit), task.kind) == ("cpburnz/python-pathspec", True, "swebench")
    assert hidden_of(sealed).fail_to_pass


def test_a_row_of_reasoning_gym_that_names_its_place_stays_what_it_was() -> None:
    place = {"data_source": "reasoning_gym", "name": "chain_sum", "seed": 3, "tools": False, "trajectory_id": 0}
    source, opened, sealed = parted(place, Schema(required=("name", "seed"), optional=("tools",)))
    assert (source, opened, sealed) == ("reasoning_gym", {"name": "chain_sum", "seed": 3, "tools": False}, {})


def test_a_row_is_named_by_its_own_source_and_its_extra_info() -> None:
    """Also where that is JSON text: rows with one name would count as one sample, and end each other's jobs."""
    about = {"name": "gym", "split": "train", "index": 3}
    for given in (about, json.dumps(about)):
        call = rollout({"instance": {"data_source": "reasoning_gym", "extra_info": given}, "sampling_params": {}})
        assert (call.data_source, call.instance_id) == ("reasoning_gym_entry", "reasoning_gym_gym_train_3")
    assert rollout({"instance": {"extra_info": "{"}, "sampling_params": {}}).instance_id == "swebench_None_None_None"


def test_a_column_that_is_nan_is_an_empty_one() -> None:
    row = {**asked("deepscaler", right=True), "seed": math.nan, "instance_id": math.nan, "starter_code": math.nan}
    assert parted(row) == parted(asked("deepscaler", right=True))
    call = rollout({"instance": row, "sampling_params": {"temperature": math.nan}})
    assert (call.instance_id, call.sampling.temperature) == ("deepscaler_deepscaler_train_7", 1.0)
