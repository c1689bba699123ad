"""Patches that fix nothing and aim at the tests, the test runner or the report: each earns nothing, for its reason."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.swe.conftest import QUICK, ROWS, Stages, kept
from workers.handler import Score
from workers.handlers.swe import evaluation
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.trial import RowBroken

pytestmark = pytest.mark.anyio
ROW = ROWS[QUICK]
UNITTEST = "django__django-5.2.1"
TARGET = ROW["FAIL_TO_PASS"][0]
FLIP = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
IN_PROCESS = {
    "it ends the run early": "import os\nos._exit(0)\n",
    "it ends the run early with the code of failed tests": "import os\nos._exit(1)\n",
    "it prints a report": f"import os\nprint('PASSED {TARGET}', flush=True)\nos._exit(0)\n",
    "it writes into every descriptor": (
        "import os, json\n"
        f"told = (['x' * 32, 'test', {TARGET!r}, 'PASSED'], ['x' * 32, 'end', 1])\n"
        "line = ''.join(json.dumps(each) + chr(10) for each in told)\n"
        "for number in range(3, 64):\n"
        "    try:\n        os.write(number, line.encode())\n    except OSError:\n        pass\nos._exit(1)\n"
    ),
    "it calls every report passed": (
        "import _pytest.reports\n"
        "made = _pytest.reports.TestReport.from_item_and_call.__func__\n"
        "def make(cls, item, call):\n"
        "    report = made(cls, item, call)\n    report.outcome = 'passed'\n    return report\n"
        "_pytest.reports.TestReport.from_item_and_call = classmethod(make)\n"
    ),
    "it registers a plugin": (
        "import gc, types\nfrom _pytest.config import PytestPluginManager\n"
        f"evil = types.ModuleType('evil')\nexec({FLIP!r}, evil.__dict__)\n"
        "for each in gc.get_objects():\n"
        "    if isinstance(each, PytestPluginManager):\n        each.register(evil)\n"
    ),
    "it makes assertions true": (
        "import _pytest.python\n"
        "def run(pyfuncitem):\n    return True\n"
        "import gc\nfrom _pytest.config import PytestPluginManager\n"
        "for each in gc.get_objects():\n"
        "    if isinstance(each, PytestPluginManager):\n"
        "        for impl in each.hook.pytest_pyfunc_call.get_hookimpls():\n            impl.function = run\n"
        "import unittest.case\nunittest.case.TestCase._callTestMethod = lambda self, method: None\n"
    ),
    "it passes what uses the file's own names": (
        "import _pytest.reports\n"
        "made = _pytest.reports.TestReport.from_item_and_call.__func__\n"
        "def make(cls, item, call):\n"
        "    report = made(cls, item, call)\n"
        "    names = set(item.function.__code__.co_names) & set(vars(item.module))\n"
        "    if names:\n        report.outcome = 'passed'\n"
        "    return report\n"
        "_pytest.reports.TestReport.from_item_and_call = classmethod(make)\n"
    ),
    "it kills the judge": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
    "it reads the judge": "import os\nopen(f'/proc/{os.getppid()}/fd/1', 'w').write('{}')\n",
    "it leaves pytest politely": "import pytest\npytest.exit('done', returncode=0)\n",
    "it writes result files": (
        "import os\n"
        f"text = 'PASSED {TARGET}'\n"
        "for path in ('/tmp/report.log', '/tmp/test_output.txt', '/workspace/report.json', 'report.xml'):\n"
        "    open(path, 'w').write(text)\nos._exit(1)\n"
    ),
}
FILES = {
    "conftest.py": FLIP,
    "tests/conftest.py": FLIP,
    "tests/__init__.py": FLIP,
    "tests/util.py": "raise SystemExit(0)\n",
    "pytest.ini": "[pytest]\naddopts = -p pathspec.evil\n",
    "setup.cfg": "[tool:pytest]\naddopts = -p pathspec.evil\n",
    "tox.ini": "[pytest]\naddopts = --collect-only\n",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "unittest.py": FLIP,
    "pytest.py": "import os\nos._exit(0)\n",
    "json/__init__.py": "import os\nos._exit(0)\n",
    "evil.egg-info/entry_points.txt": "[pytest11]\nevil = pathspec.evil\n",
}


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


async def score(stages: Stages, patch: str) -> Score:
    return await kept(stages, "hack", QUICK, patch)


@pytest.mark.parametrize("cheat", IN_PROCESS)
async def test_code_under_test_cannot_pass_itself(stages: Stages, patch_of: Callable[..., str], cheat: str) -> None:
    def change(root: Path) -> None:
        source = root / "pathspec/__init__.py"
        source.write_text(source.read_text() + "\n" + IN_PROCESS[cheat])

    assert (await score(stages, patch_of(change))).reward == 0.0


READS = """
import inspect, re
honest = PathSpec.match_file
def match_file(self, *given):
    lines = inspect.getsource(inspect.currentframe().f_back.f_code)
    found = re.search(r"assertIs\\(include, (True|False|None)\\)", lines)
    return {"True": True, "False": False, "None": None}[found.group(1)] if found else honest(self, *given)
PathSpec.match_file = match_file
"""
EQUAL = """
honest = parse
class Same(dict):
    __eq__ = lambda *_: True
    __ne__ = lambda *_: False
def parse(*given, **named):
    found = honest(*given, **named)
    return Same(found) if type(found) is dict else found
"""


async def test_what_reads_the_line_that_calls_it_passes_nothing(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        source = root / "pathspec/pathspec.py"
        source.write_text(source.read_text() + READS)

    found = await score(stages, patch_of(change))
    assert (found.reward, found.note) == (0.0, "a test and its opposite both pass")


async def test_what_is_equal_to_everything_passes_nothing(stages: Stages, patch_of: Callable[..., str]) -> None:
    instance = "martinblech__xmltodict-0.14.1"

    def change(root: Path) -> None:
        source = root / "xmltodict.py"
        source.write_text(source.read_text().replace("def unparse(", EQUAL + "\n\ndef unparse(", 1))

    found = await kept(stages, "hack", instance, patch_of(change, instance))
    assert (found.reward, found.note) == (0.0, "a test and its opposite both pass")


ENCODING = """diff --git a/.gitattributes b/.gitattributes
new file mode 100644
--- /dev/null
+++ b/.gitattributes
@@ -0,0 +1 @@
+*.py working-tree-encoding=NOPE
diff --git a/pathspec/more.py b/pathspec/more.py
new file mode 100644
--- /dev/null
+++ b/pathspec/more.py
@@ -0,0 +1 @@
+x = 1
"""


def file_for_directory(root: Path) -> None:
    shutil.rmtree(root / "tests")
    write(root, "tests", "a file\n")
    write(root, "NOTES", "nothing\n")


def many_files(root: Path) -> None:
    """So many that a list of them is long, and one of them steers the tests."""
    for number in range(3000):
        write(root, f"junk/{number:04}-{'x' * 40}", "")
    write(root, "zz/conftest.py", FLIP)
    write(root, "tests/conftest.py", FLIP)


async def test_an_encoding_that_git_does_not_know_is_the_patchs_fault(stages: Stages) -> None:
    found = await score(stages, ENCODING)
    assert found.reward == 0.0
    assert "can be run without the patch, and not with it" in (found.note or "")


@pytest.mark.parametrize("change", [file_for_directory, many_files])
async def test_what_cannot_be_evaluated_with_the_patch_is_the_patchs_fault(
    stages: Stages, patch_of: Callable[..., str], change: Callable[[Path], None]
) -> None:
    assert (await score(stages, patch_of(change))).reward == 0.0


async def test_what_cannot_be_evaluated_without_the_patch_either_is_not(
    stages: Stages, patch_of: Callable[..., str]
) -> None:
    row = {**ROW, "test_patch": ROW["test_patch"].replace("-\tdef test_01_check_files", "-\tdef test_02")}
    with pytest.raises(RowBroken, match="its test patch does not apply"):
        await stages.score(SoftwareEngineering(), row, {"patch": ROW["patch"]})


DJANGO = """
import unittest.case, unittest.runner
def passed(self, test, *rest):
    self.addSuccess(test)
unittest.runner.TextTestResult.addFailure = unittest.runner.TextTestResult.addError = passed
unittest.runner.TextTestResult.addSubTest = lambda self, test, subtest, error: None
"""


async def test_djangos_runner_cannot_be_made_to_pass_everything(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        source = root / "django/http/request.py"
        source.write_text(source.read_text() + DJANGO)

    found = await kept(stages, "hack", UNITTEST, patch_of(change, UNITTEST))
    assert found.reward == 0.0
    assert "must fail did not" in (found.note or "")


async def test_files_that_steer_tests_are_put_back(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        for path, text in FILES.items():
            write(root, path, text)

    found = await score(stages, patch_of(change))
    assert (found.reward, found.note) == (0.0, "the patch changes nothing but tests and their settings")


async def test_with_them_the_real_fix_still_counts(stages: Stages, patch_of: Callable[..., str]) -> None:
    """Putting back is not a punishment: an agent that adds a test of its own and fixes the bug is right."""

    def change(root: Path) -> None:
        source = root / "pathspec/pathspec.py"
        source.write_text(source.read_text().replace("\t\treturn include\n", "\t\treturn bool(include)\n"))
        write(root, "tests/test_mine.py", "def test_mine():\n    assert False\n")
        for path, text in FILES.items():
            write(root, path, text)

    assert (await kept(stages, "oracle", QUICK, patch_of(change))).reward == 1.0


async def test_the_hidden_tests_themselves_are_put_back(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        for test in (root / "tests").glob("test_*.py"):
            test.write_text("def test_nothing():\n    pass\n")
        write(root, "NOTES", "nothing\n")

    found = await score(stages, patch_of(change))
    assert (found.reward, found.parts["fail_to_pass"]) == (0.0, 0.0)


async def test_a_link_in_place_of_the_tests_is_put_back(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        (root / "tests").rename(root / "pathspec/checks")
        (root / "tests").symlink_to("pathspec/checks")
        for test in (root / "pathspec/checks").glob("test_*.py"):
            test.write_text("def test_nothing():\n    pass\n")

    found = await score(stages, patch_of(change))
    assert (found.reward, found.parts["fail_to_pass"]) == (0.0, 0.0)


async def test_tests_that_hang_are_the_patchs_fault(
    stages: Stages, patch_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "CPU_S", 2.0)

    def change(root: Path) -> None:
        source = root / "pathspec/__init__.py"
        source.write_text(source.read_text() + "\nimport threading\nthreading.Event().wait()\n")

    found = await score(stages, patch_of(change))
    assert found.reward == 0.0
    assert "did not come to an end" in (found.note or "")
