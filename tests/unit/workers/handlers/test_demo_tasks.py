"""The demo's tasks are what the task families take."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from prorl_mq.cli.arguments import FAMILIES
from prorl_mq.cli.demo.families import file_of, offered
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Task
from prorl_mq.schema.task_schema import split
from workers.handlers.asking import OPTIONS, Options
from workers.handlers.human_eval import HumanEval
from workers.handlers.reasoning_gym import ReasoningGym
from workers.stages import registry

EXAMPLES = Path(__file__).parents[4] / "examples"
TASKS = EXAMPLES / "demo_tasks.jsonl"


@pytest.fixture
def every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families whose library is missing here are loaded as well: nothing of it is used."""
    monkeypatch.setattr(registry, "find_spec", lambda _: True)


def test_every_task_fits_its_schema() -> None:
    tasks = [msgspec.json.decode(line, type=Task) for line in TASKS.read_bytes().splitlines()]
    schemas = {"reasoning_gym": ReasoningGym.schema, "human_eval": HumanEval.schema}
    for task in tasks:
        opened, sealed = split(schemas[task.data_source], task)
        assert sealed == {}
        msgspec.convert({name: opened[name] for name in OPTIONS if name in opened}, Options)
    assert Counter(task.data_source for task in tasks) == {"reasoning_gym": 5, "human_eval": 3}
    assert len({task.task_id for task in tasks}) == len(tasks)


@pytest.mark.usefixtures("every_family")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tasks_of_a_family_are_what_it_takes(family: str) -> None:
    """Whoever scores them finds the answer, and nobody else."""
    loaded = registry.load()
    for task in tasks_of(family):
        opened, sealed = split(loaded[task.data_source].schema, task)
        hidden = {"answer", "reward_model", "private_test_cases", "public_test_cases", "patch", "test_patch"}
        assert not hidden & opened.keys()
        assert sealed or task.data_source in {"textarena", "human_eval", "reasoning_gym", "verifiers", "gem"}


@pytest.mark.usefixtures("every_family")
def test_the_demo_knows_every_family() -> None:
    assert {path.stem for path in (EXAMPLES / "families").glob("*.jsonl")} | {"swe"} == set(FAMILIES)
    loaded = registry.load()
    built = {type(loaded["harbor"])}  # its tasks run in images that are built first: `make test-harbor`
    assert {type(handler) for handler in loaded.by_source.values()} - built == {
        type(loaded[task.data_source]) for family in FAMILIES for task in tasks_of(family)
    }


def tasks_of(family: str) -> list[Task]:
    return [msgspec.json.decode(line, type=Task) for line in file_of(family).read_bytes().splitlines()]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("swe", "images.json is missing: `make swe-images` in a checkout creates it"),
        ("gem", "the package gem is missing: pip install --no-deps gem-llm, or, in a checkout, `make trainer-types`"),
    ],
)
async def test_what_is_missing_is_named_with_what_brings_it(tmp_path: Path, family: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        async with offered(family, tmp_path):
            pass
