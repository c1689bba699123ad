"""Who types the page as it is written has a working task family."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.task_schema import Schema
from prorl_mq.schema.trajectory import Segment, Trajectory
from prorl_mq.store.server.connection import RedisSettings
from tests.sandbox.conftest import TOOLS_DIR
from workers.handler import Handler, Prepared, Ran, Run, Score
from workers.rehearsal.__main__ import made
from workers.rehearsal.check import BrokenPromise, Checking
from workers.rehearsal.stages import rehearsing, task_of

ROOT = Path(__file__).parents[2]
CLI = "import sys; from prorl_mq.cli import main; sys.exit(main())"
PAGE = (ROOT / "docs" / "howto" / "task_family.md").read_text()


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """The page's files, and what installing them would leave beside them."""
    files = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
    assert set(files) == {"anagrams.py", "test_anagrams.py", "pyproject.toml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    installed = tmp_path / "anagrams-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    points = project["entry-points"]["prorl_mq.handlers"]
    (installed / "entry_points.txt").write_text(
        "[prorl_mq.handlers]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
    )
    return tmp_path


def run(typed: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{typed}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *argv], cwd=typed, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_the_family_has_no_more_than_sixty_lines(typed: Path) -> None:
    assert len((typed / "anagrams.py").read_text().splitlines()) <= 60


def test_its_tests_pass(typed: Path) -> None:
    done = run(typed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", ".")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_its_promises_are_kept(typed: Path) -> None:
    done = run(typed, "-c", CLI, "task", "check", "anagrams", "--sandbox", "none", "--repeat", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kept") == 5
    assert done.stdout.splitlines()[-1].split() == ["Anagrams", "1", "2", "0", "1", "same"]


@pytest.mark.anyio
async def test_a_flaky_family_keeps_its_promises_is_named_and_in_quarantine_until_it_is_repaired(
    typed: Path, settings: RedisSettings
) -> None:
    redis = ("--redis", settings.url, "--namespace", settings.namespace)
    check = ("-c", CLI, "task", "quarantine", "anagrams", "--sandbox", "none", "--repeat", "2", *redis)
    text = (typed / "anagrams.py").read_text()
    flaky = text.replace('context.job.payload["letters"], more', 'str(__import__("time").time_ns()), more')
    assert flaky != text
    (typed / "anagrams.py").write_text(flaky)
    done = await asyncio.to_thread(run, typed, *check)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("kept") == 5
    assert "Anagrams, example 1, turn 0, the prompt:" in done.stdout
    assert "anagrams: in quarantine, no group of it begins until it is released" in done.stdout
    listed = await asyncio.to_thread(run, typed, "-c", CLI, "task", "release", *redis)
    assert listed.stdout == "anagrams: example 1: 1 of 1 repeats differ, first at turn 0, the prompt\n"
    as_json = await asyncio.to_thread(run, typed, "-c", CLI, "task", "release", "--json", *redis)
    assert json.loads(as_json.stdout) == dict([listed.stdout.strip().split(": ", 1)])
    unknown = await asyncio.to_thread(run, typed, "-c", CLI, "task", "release", "anagram", *redis)
    assert (unknown.returncode, "not in quarantine: anagram; there are: anagrams" in unknown.stderr) == (2, True)
    (typed / "anagrams.py").write_text(text)
    repaired = await asyncio.to_thread(run, typed, *check)
    assert repaired.returncode == 0
    assert repaired.stdout.endswith("anagrams: released from quarantine\n")


def test_workers_find_it(typed: Path) -> None:
    program = "from workers.stages.registry import load; print(load(['anagrams'])['anagrams'].schema.sealed)"
    assert run(typed, "-c", program).stdout == "('words',)\n"


BROKEN = {
    "it earns 0.5": ("reward=float(known)", "reward=0.5"),
    "Silence earns 0": ('word in context.sealed["words"]', "True"),
    "No answer can make the scorer fail": ("word = final", 'assert "{" not in context.export; word = final'),
    "and then": ('note=None if known else "no such word"', 'note=str(__import__("time").time_ns())'),
    "lacks the field 'letters'": ('payload={"letters": "abt", ', "payload={"),
}


def family(text: str) -> Handler:
    """The page's class, after a change of its text."""
    module = ModuleType("anagrams")
    exec(compile(text, "anagrams.py", "exec"), module.__dict__)
    return module.Anagrams()


@pytest.mark.anyio
async def test_a_broken_promise_is_told(typed: Path) -> None:
    text = (typed / "anagrams.py").read_text()
    async with rehearsing(None) as rehearsal:
        for told, (before, after) in BROKEN.items():
            assert before in text
            lines = await Checking(family(text.replace(before, after)), rehearsal).lines()
            assert told in "".join(f"{line.promise}: {line.fault}" for line in lines if line.fault), lines


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("anagrammes", "the module anagrammes cannot be imported"),
        ("workers.handlers.human_eval:Anagrams", "Name it as workers.handlers.human_eval:CLASS; there is HumanEval"),
    ],
)
def test_what_cannot_be_found_is_said(name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        made(name)


@pytest.mark.anyio
async def test_a_family_without_examples_cannot_be_checked() -> None:
    async with rehearsing(None) as rehearsal:
        with pytest.raises(BrokenPromise, match="HumanEval has no examples"):
            await Checking(made("workers.handlers.human_eval"), rehearsal).lines()


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_family_with_a_sandbox_is_rehearsed_as_the_page_says() -> None:
    """INIT's file is in the sandbox that RUN finds, and EVAL runs what RUN has exported in a fresh one."""
    section = PAGE.partition("## With a sandbox")[2].partition("\n## ")[0]
    methods, rehearsal = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    typed: dict[str, Any] = {"Prepared": Prepared, "Score": Score, "rehearsing": rehearsing}
    exec(methods + rehearsal, typed)

    class MyFamily:
        data_sources: Sequence[str] = ("sorting",)
        schema = Schema()
        needs_sandbox = True
        init, eval = typed["init"], typed["eval"]

        async def run(self, context: Run) -> Ran:
            assert context.sandbox is not None
            found = await context.sandbox.read_file("/workspace/data.txt")
            row = Segment(prompt_ids=[1], response_ids=[], loss_mask=[], logprobs=[])
            made = Trajectory(segments=[row], turns=[], stop_reason="finish")
            program = "print(*sorted(input().split()))" if found == b"3 1 2\n" else ""
            return Ran(trajectory=made, export=program)

    typed["MyFamily"] = MyFamily
    _, score = await typed["rollout"](task_of(MyFamily(), {}), [], TOOLS_DIR)
    assert score.reward == 1.0
