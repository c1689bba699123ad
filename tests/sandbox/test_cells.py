"""The persistent kernel, the same in every kind of sandbox."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.isolators.kinds import make_provider
from sandbox.protocol import Sandbox, SandboxLimits, SandboxSpec
from tests.sandbox.conftest import NODE, TOOLS_DIR, Create

pytestmark = pytest.mark.anyio


@pytest.fixture
def ipython(python_dir: Path | None) -> None:
    if python_dir is None:
        if os.environ.get("CI"):
            pytest.fail("no IPython for sandboxes: run `make sandbox-tools`")
        pytest.skip("no IPython for sandboxes: run `make sandbox-tools`")


@pytest.fixture(params=["ipython", "plain"])
async def cells(
    request: pytest.FixtureRequest, kind: str, state_dir: Path, python_dir: Path | None
) -> AsyncIterator[Sandbox]:
    """A sandbox whose cells run with IPython, and one without."""
    if request.param == "ipython":
        request.getfixturevalue("ipython")
    offered = python_dir if request.param == "ipython" else None
    made = make_provider(kind, node=NODE, state_dir=state_dir, python_dir=offered, tools_dir=TOOLS_DIR)
    sandbox = await made.create(SandboxSpec(owner="cells"))
    yield sandbox
    await sandbox.close()
    await made.aclose()


async def test_values_and_prints_come_in_the_order_they_happen(cells: Sandbox) -> None:
    result = await cells.ipython("import os\nprint('a')\nos.system('echo b')\nprint('c')\n1 + 1")
    assert (result.output.splitlines(), result.ok) == (["a", "b", "c", "2"], True)


async def test_variables_and_imports_stay(cells: Sandbox) -> None:
    await cells.ipython("import math\nx = 4")
    assert (await cells.ipython("math.sqrt(x)")).output == "2.0\n"


async def test_an_error_gives_its_traceback_and_keeps_the_state(cells: Sandbox) -> None:
    await cells.ipython("x = 1")
    result = await cells.ipython("x = 2\n1 / 0")
    assert not result.ok
    assert "ZeroDivisionError: division by zero" in result.output
    assert "\x1b[" not in result.output
    assert (await cells.ipython("x")).output == "2\n"


async def test_a_syntax_error_is_reported(cells: Sandbox) -> None:
    result = await cells.ipython("def f(:\n")
    assert not result.ok
    assert "SyntaxError" in result.output


async def test_top_level_await_works(cells: Sandbox) -> None:
    result = await cells.ipython("import asyncio\nawait asyncio.sleep(0, 'slept')")
    assert (result.output, result.ok) == ("'slept'\n", True)


async def test_input_is_refused_with_a_reason(cells: Sandbox) -> None:
    result = await cells.ipython("input('name?')")
    assert not result.ok
    assert "nobody is there to type" in result.output


async def test_a_timeout_interrupts_the_cell_and_keeps_the_state(cells: Sandbox) -> None:
    await cells.ipython("x = 5")
    result = await cells.ipython("import time\ntime.sleep(60)", timeout_s=0.5)
    assert (result.ok, result.timed_out) == (False, True)
    assert "KeyboardInterrupt" in result.output
    assert (await cells.ipython("x")).output == "5\n"


async def test_a_cell_that_ignores_the_interrupt_loses_its_kernel(cells: Sandbox) -> None:
    await cells.ipython("import signal, time")
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    result = await cells.ipython(code, timeout_s=1.5)
    assert result.timed_out
    assert "killed by signal 9" in result.output
    assert (await cells.ipython("1")).output == "1\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\nos._exit(3)", "the kernel ended with exit code 3"),
        ("import os\nos.closerange(0, 100)", "the kernel"),
        ("import ctypes\nctypes.string_at(0)", "the kernel was killed by signal 11"),
    ],
)
async def test_a_kernel_that_dies_is_replaced_and_says_so(cells: Sandbox, code: str, message: str) -> None:
    await cells.ipython("x = 1")
    result = await cells.ipython(code)
    assert not result.ok
    assert message in result.output
    assert "NameError" in (await cells.ipython("x")).output


async def test_sys_exit_does_not_end_the_kernel(cells: Sandbox) -> None:
    await cells.ipython("x = 1")
    assert "SystemExit" in (await cells.ipython("import sys\nsys.exit(2)")).output
    assert (await cells.ipython("x")).output == "1\n"


async def test_long_output_is_cut(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(output_bytes=1000))
    result = await sandbox.ipython("print('x' * 20_000_000)")
    assert result.ok
    assert result.dropped_bytes > 19_000_000
    assert len(result.output) < 1100


async def test_invalid_utf8_and_lone_surrogates_are_replaced(cells: Sandbox) -> None:
    result = await cells.ipython("import os\n_ = os.write(1, b'\\xff\\n')\nprint('\\ud800')")
    assert result.ok
    assert result.output.startswith("\ufffd\n")


@pytest.mark.usefixtures("ipython")
async def test_magics_and_shell_escapes_work(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("%cd -q /tmp\n!pwd\n%timeit -n1 -r1 -q pass\nfiles = !echo a b\nfiles")
    assert result.ok, result.output
    assert result.output.splitlines() == ["/tmp", "['a b']"]


@pytest.mark.usefixtures("ipython")
async def test_a_shell_escape_is_interrupted_with_its_cell(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("!sleep 60", timeout_s=1.0)
    assert result.timed_out
    assert result.seconds < 50
    assert (await sandbox.ipython("1")).output == "1\n"


async def test_a_cancelled_call_interrupts_the_cell(sandbox: Sandbox) -> None:
    code = "import time\nx = 1\nopen('begun', 'w').write('1')\ntime.sleep(60)"
    running = asyncio.create_task(sandbox.ipython(code, timeout_s=60))
    await sandbox.run(["sh", "-c", "until [ -s begun ]; do :; done"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.ipython("x", timeout_s=50)).output == "1\n"


async def test_the_cells_of_a_shell_and_a_kernel_run_side_by_side(sandbox: Sandbox) -> None:
    first = asyncio.create_task(sandbox.ipython("import os\nos.system('until [ -e go ]; do :; done')", timeout_s=100))
    await sandbox.bash("touch go")
    assert (await first).ok


DRAWING = """
import base64
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
class Drawing:
    def _repr_png_(self): return PNG
    def __repr__(self): return "<drawing>"
class Sketch:
    def _repr_svg_(self): return "<svg/>"
"""


async def test_a_picture_becomes_a_file_that_the_output_names(cells: Sandbox) -> None:
    await cells.ipython(DRAWING)
    result = await cells.ipython("print('before')\nDrawing()")
    (image,) = result.images
    assert (image.mime, image.size_bytes) == ("image/png", 70)
    assert result.output == f"before\n[image/png, 70 bytes: {image.path}]\n"
    assert (await cells.read_file(image.path)).startswith(b"\x89PNG")
    second = (await cells.ipython("Sketch()")).images[0]
    assert (second.mime, await cells.read_file(second.path)) == ("image/svg+xml", b"<svg/>")
    assert (await cells.ipython("1")).images == []


async def test_pictures_of_a_new_kernel_do_not_replace_the_old_ones(cells: Sandbox) -> None:
    await cells.ipython(DRAWING)
    first = (await cells.ipython("Drawing()")).images[0].path
    await cells.ipython("import os; os._exit(1)")
    await cells.ipython(DRAWING)
    assert (await cells.ipython("Drawing()")).images[0].path != first


@pytest.mark.usefixtures("ipython")
async def test_displayed_pictures_come_in_order_and_only_so_many(sandbox: Sandbox) -> None:
    await sandbox.ipython(DRAWING)
    code = "from IPython.display import Image, display\ndisplay(Drawing(), 'text')\ndisplay(Image(data=PNG))\nprint(1)"
    result = await sandbox.ipython(code)
    assert len(result.images) == 2
    assert [line.split(":")[0] for line in result.output.splitlines()] == [
        "[image/png, 70 bytes", "'text'", "[image/png, 70 bytes", "1",
    ]  # fmt: skip
    result = await sandbox.ipython("for _ in range(100): display(Drawing())")
    assert len(result.images) == 32
    assert "not kept" in result.output


@pytest.mark.usefixtures("ipython")
async def test_a_drawing_that_fails_is_shown_as_text_with_its_error(sandbox: Sandbox) -> None:
    code = "class Bad:\n    def _repr_png_(self): 1 / 0\n    def __repr__(self): return '<bad>'\nBad()"
    result = await sandbox.ipython(code)
    assert "ZeroDivisionError" in result.output
    assert result.output.endswith("<bad>\n")


async def test_a_picture_that_finds_no_room_is_said(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(file_bytes=100_000))
    result = await sandbox.ipython("class Big:\n    def _repr_png_(self): return bytes(1_000_000)\nBig()")
    assert (result.ok, result.images) == (True, [])
    assert "could not be saved: File too large" in result.output


async def test_a_thread_that_prints_later_is_heard_with_the_next_cell(cells: Sandbox) -> None:
    code = "import threading\ngo = threading.Event()\nt = threading.Thread(target=lambda: (go.wait(), print('later')))"
    await cells.ipython(code + "\nt.start()")
    assert (await cells.ipython("go.set()\nt.join()")).output == "later\n"
    await cells.ipython("t = threading.Timer(0.01, lambda: print('x' * 500_000))\nt.start()")
    result = await cells.ipython("t.join()")
    assert result.output.count("x") + result.dropped_bytes >= 500_000


async def test_a_cell_that_answers_for_its_kernel_loses_it(cells: Sandbox) -> None:
    code = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 100)\n    except OSError: pass"
    result = await cells.ipython(code)
    assert not result.ok
    assert "the kernel was killed" in result.output
    assert (await cells.ipython("1")).output == "1\n"


@pytest.mark.parametrize(
    "answer",
    [
        '{"ok": true, "images": [{"path": "a", "mime": "b", "size_bytes": Infinity}]}',
        '{"ok": true, "images": ' + "[" * 60_000,
        '{"ok": true, "images": ' + "9" * 9_000 + "}",
        "[]",
    ],
    ids=["a size without end", "lists without end", "a long number", "a list"],
)
async def test_an_answer_that_a_cell_makes_up_costs_its_kernel_and_nothing_else(cells: Sandbox, answer: str) -> None:
    code = f"import json\njson.dumps = lambda *a: {answer!r}"
    assert "the kernel was killed" in (await cells.ipython(code)).output
    assert (await cells.ipython("1")).output == "1\n"


async def test_half_a_character_in_a_made_up_answer_is_replaced(cells: Sandbox) -> None:
    image = [{"path": "\udcff", "mime": "b", "size_bytes": 1}]
    code = f"import json\nreal = json.dumps\njson.dumps = lambda *a: real({{'ok': True, 'images': {image!r}}})"
    assert [each.path for each in (await cells.ipython(code)).images] == ["?"]


async def test_a_password_or_a_debugger_gets_no_input_either(cells: Sandbox) -> None:
    for code in ("import getpass\ngetpass.getpass()", "import sys\nassert sys.stdin.read() == ''", "breakpoint()"):
        result = await cells.ipython(code, timeout_s=100)
        assert not result.timed_out, code


async def test_a_value_of_many_megabytes_is_cut(cells: Sandbox) -> None:
    result = await cells.ipython("'x' * 20_000_000")
    assert (result.ok, result.dropped_bytes > 19_000_000) == (True, True)


async def test_programs_of_a_cell_inherit_no_descriptor_but_their_own_three(cells: Sandbox) -> None:
    assert (await cells.ipython("import os\n_ = os.system('ls /proc/self/fd')")).output.split() == ["0", "1", "2", "3"]
