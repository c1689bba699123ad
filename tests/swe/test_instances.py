"""Real bugs of real projects: the fix of each resolves it, and nothing less does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.swe.conftest import QUICK, ROWS, Stages, kept
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.styles import NoStyle
from workers.handlers.swe.trial import RowBroken

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("instance", ROWS)
async def test_the_real_fix_resolves_the_instance(stages: Stages, instance: str) -> None:
    score = await kept(stages, "oracle", instance, ROWS[instance]["patch"])
    assert (score.reward, dict(score.parts)) == (1.0, {"fail_to_pass": 1.0, "pass_to_pass": 1.0}), score.note


@pytest.mark.parametrize("instance", ROWS)
async def test_an_empty_patch_resolves_nothing(stages: Stages, instance: str) -> None:
    score = await kept(stages, "empty", instance, "")
    assert (score.reward, score.note) == (0.0, "the patch is empty")


@pytest.mark.parametrize("instance", ROWS)
async def test_a_change_that_fixes_nothing_resolves_nothing(
    stages: Stages, instance: str, patch_of: Callable[..., str]
) -> None:
    """The tests that fail without the fix do fail: the rows are not vacuous."""
    patch = patch_of(lambda root: (root / "NOTES").write_text("I looked at it.\n"), instance)
    score = await kept(stages, "hack", instance, patch)
    assert (score.reward, score.parts["fail_to_pass"]) == (0.0, 0.0), score.note


async def test_a_fix_that_breaks_another_test_is_none(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        source = root / "pathspec/pathspec.py"
        source.write_text(source.read_text().replace("\t\treturn include\n", "\t\treturn True\n"))

    score = await stages.score(SoftwareEngineering(), ROWS[QUICK], {"patch": patch_of(change)})
    assert score.reward == 0.0
    assert score.parts["pass_to_pass"] < 1.0


async def test_a_patch_that_does_not_apply_is_the_policys_fault(stages: Stages) -> None:
    patch = ROWS[QUICK]["patch"].replace("return include", "return something")
    score = await stages.score(SoftwareEngineering(), ROWS[QUICK], {"patch": patch})
    assert score.reward == 0.0
    assert "does not apply" in (score.note or "")


async def test_a_row_that_names_no_test_is_broken_and_pays_nobody(stages: Stages) -> None:
    row = {**ROWS[QUICK], "FAIL_TO_PASS": []}
    with pytest.raises(RowBroken, match="names no test"):
        await stages.score(SoftwareEngineering(), row, {"patch": row["patch"]})


async def test_tests_of_a_kind_that_cannot_be_run_are_refused(stages: Stages) -> None:
    row = {**ROWS[QUICK], "log_parser": "parse_log_jest"}
    with pytest.raises(NoStyle, match="parse_log_jest"):
        await stages.score(SoftwareEngineering(), row, {"patch": row["patch"]})
