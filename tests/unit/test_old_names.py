"""Names that documents of 0.1.0 use work until the next release, and say what they are called now."""

import gc
import runpy
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

import pytest

NAMES = {
    "prorl_mq.dapo.filters": "Candidate",
    "prorl_mq.dapo.request": "Dapo",
    "prorl_mq.messages": "BatchRequest GroupRequest Limits Purpose Sampling Task Verdict",
    "prorl_mq.strictness": "Misfit convert",
    "prorl_mq.trajectory": "Trajectory",
}
SAME = {
    "prorl_mq.client": "AsyncClient ClosedGroup RunSettings",
    "prorl_mq.client.rollouts": "Rollouts sampling_of shared",
    "prorl_mq.converters": "agent_lightning nemo_gym rllm skyrl verl",
    "prorl_mq.converters.rollout": "Rollout logprobs rollouts versions",
    "prorl_mq.errors": "NotTrainable ProrlError",
    "workers.agent.hermes": "Message",
    "workers.agent.loading": "policy_renderer",
    "workers.agent.loop": "run_agent",
    "workers.agent.tools": "Answer Arguments Tool ToolContext select",
    "workers.handler": "Eval Init Prepared Ran Run Schema Score",
    "workers.handlers.answers": "final_answer",
    "workers.handlers.asking": "OPTIONS Prompts ask",
    "workers.rehearsal.check": "Example",
    "workers.rehearsal.stages": "rehearsing task_of",
}
PROGRAMS = {
    "prorl_mq.acl": "prorl_mq.store.server.acl",
    "prorl_mq.lifecycle": "prorl_mq.schema.lifecycle",
    "workers.keeper": "workers.node.keeper",
}


@pytest.fixture(autouse=True)
def no_garbage_is_closed_meanwhile() -> Iterator[None]:
    """`pytest.warns` hands on every other warning, also of what earlier tests have left unclosed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("old", NAMES)
def test_an_old_module_has_the_documented_names_and_says_its_new_one(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now prorl_mq."):
        module = import_module(old)
    assert [name for name in NAMES[old].split() if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", SAME)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_that_stayed_has_the_documented_names(module: str) -> None:
    there = import_module(module)
    missing = [name for name in SAME[module].split() if not hasattr(there, name)]
    assert [name for name in missing if not import_module(f"{module}.{name}")] == []


@pytest.mark.parametrize("old", PROGRAMS)
def test_an_old_program_runs_the_new_one(
    old: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(program: str) -> str:
        monkeypatch.setattr(sys, "argv", [program, "--help"])
        monkeypatch.delitem(sys.modules, program, raising=False)
        with suppress(SystemExit):
            runpy.run_module(program, run_name="__main__")
        return capsys.readouterr().out

    expected = printed(PROGRAMS[old])
    with pytest.warns(DeprecationWarning, match=f"is now python -m {PROGRAMS[old]}"):
        assert printed(old) == expected != ""
