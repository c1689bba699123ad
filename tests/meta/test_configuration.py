"""The page of settings is what the declarations say, and no variable is missing from it."""

import argparse
import ast
import re
from pathlib import Path

import pytest

from ops import configuration
from ops.configuration import PROGRAMS, settings_of
from ops.gates.code import settings
from ops.gates.tree import Tree
from prorl_mq.process.environment import INTERNAL, VARIABLES
from prorl_mq.settings import add

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "configuration.md"
VARIABLE = re.compile(r"PRORL_[A-Z_]+")


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == configuration.page(), "run `make docs-reference`"


def test_every_variable_of_the_sources_is_on_the_page() -> None:
    nodes = (node for module in Tree(ROOT).modules for node in module.nodes if isinstance(node, ast.Constant))
    named = {node.value for node in nodes if isinstance(node.value, str) and VARIABLE.fullmatch(node.value)}
    assert named - INTERNAL - set(re.findall(r"`(PRORL_[A-Z_]+)`", PAGE.read_text())) == set()


def test_every_declared_flag_is_on_the_page() -> None:
    declared = {each.what for each in settings(Tree(ROOT)) if each.what.startswith("--")}
    assert declared - set(re.findall(r"^\| `(--[a-z-]+)`", PAGE.read_text(), re.MULTILINE)) == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_can_be_made_from_every_declaration(program: str) -> None:
    for _, setting in settings_of(program):
        parser = argparse.ArgumentParser()
        add(parser, [setting], {})
        assert setting.help.split("%")[0] in " ".join(parser.format_help().split())


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_setting_says_what_it_is(program: str) -> None:
    assert [setting.name for _, setting in settings_of(program) if not setting.help] == []


def test_the_variable_of_a_flag_ends_with_its_name() -> None:
    flags = {setting for program in PROGRAMS for _, setting in settings_of(program) if setting.variable}
    ends = {each: each.name.removeprefix("--").replace("-", "_").upper() for each in flags}
    others = {(each.name, each.variable) for each, end in ends.items() if not str(each.variable).endswith(end)}
    assert others == {("--state-dir", "PRORL_STATE"), ("--tools-dir", "PRORL_SANDBOX_TOOLS")}


def test_every_declared_variable_is_read() -> None:
    texts = "\n".join(module.text for module in Tree(ROOT).modules if not module.name.endswith("process.environment"))
    assert [each.name for each in VARIABLES if each.name not in texts] == []
