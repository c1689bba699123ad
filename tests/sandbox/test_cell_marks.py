"""A cell is split into IPython's tokens only where a mark of IPython's may be in it."""

import itertools
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.server import cells
from tests.sandbox.conftest import PYTHON_DIR

PIECES = ("a", " ", "=", "%b", "!c", "?", "\n", "\\\n", "'%'", "#", ";", ",", "/", "(", "\t", "\r", "\f", "==", "+=")
SHORT = (
    "%time a",
    "a = !ls\n",
    "x = \\\n%pwd\n",
    "a.b??",
    "?a",
    "if a:\n  !ls\n",
    "s = '''\n%no\n'''\n",
    "a %b",
    "f(?)\n",
)


def compare(marks: str) -> int:
    """How many cells become something else than IPython makes of them."""
    cells.MARKED = marks
    from IPython.core.inputtransformer2 import TransformerManager  # type: ignore[import-not-found,unused-ignore]

    ours, theirs = cells.transformers(), TransformerManager()
    chosen = random.Random(17)
    longer = ("".join(chosen.choices(PIECES, k=5)) for _ in range(300))
    texts = [*SHORT, *map("".join, itertools.product(PIECES, repeat=2)), *longer]

    def made(by: TransformerManager, text: str) -> object:
        try:
            return by.transform_cell(text)
        except SyntaxError as error:
            return str(error)

    return sum(made(ours, text) != made(theirs, text) for text in texts)


@pytest.mark.skipif(not (PYTHON_DIR / "IPython").is_dir(), reason="no IPython for sandboxes: run `make sandbox-tools`")
def test_a_cell_becomes_what_ipython_makes_of_it(tmp_path: Path) -> None:
    """With marks that no line has, hundreds of cells would lose their magics."""
    program = f"import sys; sys.path.append({str(PYTHON_DIR)!r}); import tests.sandbox.test_cell_marks as t\n"
    program += "print(t.compare(t.cells.MARKED), t.compare('(?!)'))"
    root = Path(cells.__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=root, env={"HOME": str(tmp_path), "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ours, without = map(int, told.stdout.split())
    assert (ours, without > 100) == (0, True)


@pytest.mark.parametrize("line", ["x = 1\n", "print('100 %')", "a % b", "x = y if z else 'no?'", ""])
def test_most_lines_have_no_mark(line: str) -> None:
    assert re.match(cells.MARKED, line) is None
