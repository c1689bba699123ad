"""The page of settings is what the declarations say, and no variable is missing from it."""

import ast
import re
from pathlib import Path

from ops import configuration
from ops.gates.tree import Tree
from prorl_mq.process.environment import INTERNAL, VARIABLES

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "configuration.md"
VARIABLE = re.compile(r"PRORL_[A-Z_]+")


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == configuration.page(), "run `make docs-reference`"


def test_every_variable_of_the_sources_is_on_the_page() -> None:
    nodes = (node for module in Tree(ROOT).modules for node in module.nodes if isinstance(node, ast.Constant))
    named = {node.value for node in nodes if isinstance(node.value, str) and VARIABLE.fullmatch(node.value)}
    assert named - INTERNAL - set(re.findall(r"`(PRORL_[A-Z_]+)`", PAGE.read_text())) == set()


def test_every_declared_variable_is_read() -> None:
    texts = "\n".join(module.text for module in Tree(ROOT).modules if not module.name.endswith("process.environment"))
    assert [each.name for each in VARIABLES if each.name not in texts] == []
