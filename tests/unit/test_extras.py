"""A library that is missing comes with the command that installs it."""

import importlib
import sys

import pytest

from prorl_mq import extras
from prorl_mq.extras import advice, extra_of

BRINGS = {
    "uvloop": "service", "prometheus_client": "service", "starlette.routing": "service", "reasoning_gym": "tasks",
    "swebench": "swe", "pyarrow.parquet": "archive", "rq_dashboard": "dashboard",
}  # fmt: skip


@pytest.mark.parametrize("module", BRINGS)
def test_the_extra_is_that_of_the_distribution(module: str) -> None:
    assert extra_of(module) == BRINGS[module]


def test_a_library_of_the_package_itself_or_of_nobody_has_none() -> None:
    assert [extra_of(name) for name in ("msgspec", "json", "gem")] == [None] * 3


def test_advice_names_library_and_command() -> None:
    error = ModuleNotFoundError("No module named 'uvloop'", name="uvloop.loop")
    assert advice(error) == "the library uvloop is not installed: pip install 'prorl-mq[service]'"
    assert advice(ModuleNotFoundError("No module named 'gem'", name="gem")) == "the library gem is not installed"
    assert advice(ImportError("cannot import name 'x'", name="uvloop")) == "cannot import name 'x'"


def test_a_program_without_the_service_says_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(_: str) -> object:
        raise ModuleNotFoundError("No module named 'uvloop'", name="uvloop")

    monkeypatch.setattr(importlib, "import_module", without)
    assert extras.worker() == 2
    assert capsys.readouterr().err == (
        "prorl-worker: the library uvloop is not installed: pip install 'prorl-mq[service]'\n"
    )


def test_a_module_of_ours_that_is_missing_is_no_matter_of_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workers.__main__", None)
    with pytest.raises(ModuleNotFoundError):
        extras.worker()
