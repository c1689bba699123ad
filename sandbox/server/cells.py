"""The kernel process: runs cells with IPython where it can be imported, else with a plain Python namespace."""

from __future__ import annotations

import builtins
import json
import marshal
import os
import signal
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio
    import types
    from collections.abc import Callable

    from sandbox.server.checkpoint.kernel_state import KernelState

from sandbox.server.images import ENDINGS, Images

LENGTH = struct.Struct("!I")
CHECKPOINT: dict[str, str | bytes] = {}  # modules of checkpoints, as text or as code: most processes never need them
SHOWN = ["text/plain", *ENDINGS]
# A line that IPython changes by its tokens has a mark at its front, is assigned from one, or ends with a question.
MARKED = r"(?s)\s*[!?%,;/]|.*(?:=\s*[!%]|\?\s*\Z)"
SCALARS = (int, float, str)  # that IPython writes as they are
NO_INPUT = "input() cannot be answered in a cell: nobody is there to type. Put the value into the code."


def compiled(name: str) -> Any:
    """A class of the modules of checkpoints, which the first call runs."""
    names = globals()
    if name not in names:
        given = names["CHECKPOINT"][name]
        code = marshal.loads(given) if isinstance(given, bytes) else compile(given, "checkpoint", "exec")  # noqa: S302
        exec(code, names)  # noqa: S102 - our own
    return names[name]


def refuse_input(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(NO_INPUT)


class PlainCells:
    """Python cells without IPython: the last expression's value is printed, errors print their traceback."""

    def __init__(self, images: Images) -> None:
        import types

        self._images = images
        sys.displayhook = self._show
        self._module = types.ModuleType("__main__")
        sys.modules["__main__"] = self._module
        vars(self._module)["__builtins__"] = builtins
        self.count = 0
        self.names = vars(self._module)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, code: str) -> bool:
        import ast
        import traceback

        self.count += 1
        name = f"<cell {self.count}>"
        try:
            tree = ast.parse(code, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            self._execute(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if isinstance(last, ast.Expr):
                single = ast.Interactive([last])
                self._execute(compile(single, name, "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        except SystemExit as error:
            print(f"SystemExit: {error}")
            return False
        except BaseException:
            kind, value, trace = sys.exc_info()
            while trace is not None and trace.tb_frame.f_code.co_filename != name:
                trace = trace.tb_next
            traceback.print_exception(kind, value, trace)
            return False
        return True

    def _show(self, value: object) -> None:
        if value is not None:
            vars(builtins)["_"] = value
            print(self._images.draw(value) or repr(value))

    def _execute(self, code: types.CodeType) -> None:
        import asyncio
        import inspect

        value = eval(code, vars(self._module))  # noqa: S307 - running code is the task
        if code.co_flags & inspect.CO_COROUTINE:
            self._loop = self._loop or asyncio.new_event_loop()
            self._loop.run_until_complete(value)


class IPythonCells:
    """IPython's own shell: magics, `!commands`, top-level await, its tracebacks without colour."""

    def __init__(self, images: Images) -> None:
        from IPython.core.displaypub import DisplayPublisher
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config  # type: ignore[import-not-found,unused-ignore]

        class Displays(DisplayPublisher):  # type: ignore[misc]
            """Prints what `display` is given."""

            def publish(self, data: dict[str, Any], metadata: Any = None, **options: Any) -> None:
                line = images.show(data)
                if line is None:
                    super().publish(data, metadata, **options)
                else:
                    print(line)

        class Cells(InteractiveShell):  # type: ignore[misc]
            displayhook_class = _values(images)
            display_pub_class = Displays

            def enable_gui(self, gui: Any = None) -> None:
                """There is none, and `%matplotlib inline` asks for none."""

            def should_run_async(self, raw_cell: str, **about: Any) -> bool:
                """Does not compile a cell to learn that nothing in it is awaited."""
                cell = about.get("transformed_cell") or raw_cell
                return ("await" in cell or "async" in cell) and bool(super().should_run_async(raw_cell, **about))

            def ask_exit(self) -> None:
                os._exit(0)

        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor" if _ipython_major() >= 9 else "NoColor"
        config.InteractiveShell.ast_node_interactivity = "last_expr"
        self._shell = Cells.instance(config=config, input_transformer_manager=transformers())
        self._shell.system = self._shell.system_raw
        self._shell.display_formatter.active_types = SHOWN
        self.names: dict[str, Any] = self._shell.user_ns
        sys.meta_path.insert(0, InlineFigures())

    @property
    def count(self) -> int:
        return int(self._shell.execution_count)

    @count.setter
    def count(self, count: int) -> None:
        self._shell.execution_count = count

    def run(self, code: str) -> bool:
        return bool(self._shell.run_cell(code, store_history=True).success)


def _values(images: Images) -> Any:
    """The class of the hook that shows the value of a cell's last line."""
    from IPython.core.displayhook import DisplayHook

    class Values(DisplayHook):  # type: ignore[misc]
        """Prints a value without the `Out[n]:` before it, and asks only for the formats that are shown."""

        def quiet(self) -> bool:
            last = self.shell.history_manager.input_hist_parsed[-1:]
            return any(";" in cell for cell in last) and bool(super().quiet())

        def compute_format_data(self, result: Any) -> Any:
            formatter = self.shell.display_formatter
            if _is_repr(formatter, type(result)):
                return {"text/plain": repr(result)}, {}
            return formatter.format(result, include=SHOWN)

        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            line = images.show(format_dict)
            if line is None:
                super().write_format_data(format_dict, md_dict)
            else:
                print(line)

    return Values


def _is_repr(formatter: Any, kind: type) -> bool:
    """True for a kind of value that IPython shows by its `repr`, as nobody has asked for another way."""
    if kind not in SCALARS or formatter.ipython_display_formatter.type_printers:
        return False
    from IPython.lib.pretty import _repr_pprint

    return {each.type_printers.get(kind) for each in formatter.formatters.values()} <= {None, _repr_pprint}


def transformers() -> Any:
    """Makes Python of a cell, as IPython does, which splits each cell into tokens, in Python."""
    import re

    from IPython.core.inputtransformer2 import TransformerManager

    marked = re.compile(MARKED).match

    class Transformers(TransformerManager):  # type: ignore[misc]
        def do_token_transforms(self, lines: list[str]) -> list[str]:
            if len(self.token_transformers) == own and not any(map(marked, lines)):
                return lines
            return super().do_token_transforms(lines)  # type: ignore[no-any-return]

    made = Transformers()
    own = len(made.token_transformers)
    return made


class InlineFigures:
    """Has matplotlib show its figures as cells do, unless somebody has chosen another way before its first use."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "matplotlib.pyplot":
            sys.meta_path.remove(self)
            import importlib.util

            library = sys.modules["matplotlib"]
            chosen = "MPLBACKEND" in os.environ or isinstance(dict.__getitem__(library.rcParams, "backend"), str)
            if not chosen and importlib.util.find_spec("matplotlib_inline") is not None:
                library.use("module://matplotlib_inline.backend_inline")


def _ipython_major() -> int:
    import IPython

    return int(IPython.version_info[0])


def _cells(python_dir: str, images: Images) -> PlainCells | IPythonCells:
    sys.path[0] = ""
    if python_dir:
        sys.path.append(python_dir)
    try:
        return IPythonCells(images)
    except ImportError:
        return PlainCells(images)


def _next_cell(fd: int) -> str | dict[str, Any]:
    """A cell's code, or an order of the server. It comes alone: the next one is sent when this one was answered."""
    data, size = b"", LENGTH.size
    while len(data) < size:
        chunk = os.read(fd, 65536)
        if not chunk:
            os._exit(0)
        data += chunk
        if len(data) >= LENGTH.size:
            size = LENGTH.size + LENGTH.unpack_from(data)[0]
    return json.loads(data[LENGTH.size :])  # type: ignore[no-any-return]


def run_kernel(arguments: list[str]) -> None:
    """Reads a cell, runs it, answers whether it went well and what images it showed. Its text is on standard output.

    An order of the server's own is a part of a checkpoint, which is written to and read from a file in memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers, memory = (int(argument) for argument in arguments[:3])
    sys.argv = [""]
    sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    vars(builtins)["input"] = refuse_input
    images = Images(os.path.join(os.path.expanduser("~"), "cell-images"))
    cells = _cells(arguments[3], images)
    kept: KernelState | None = None
    first = (dict(cells.names), dict(os.environ))
    owner = os.getpid()
    while True:
        code = _next_cell(requests)
        if isinstance(code, str):
            ok = _run(partial(cells.run, code))
        else:
            kept = kept or compiled("KernelState")(cells, *first)
            ok = _run(partial(kept.obey, code, memory))
        if os.getpid() != owner:
            os._exit(0)  # a fork made by the cell came back here
        answer = json.dumps({"ok": ok, "images": images.take()}).encode()
        os.write(answers, LENGTH.pack(len(answer)) + answer)


def _run(run: Callable[[], bool]) -> bool:
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ok = run()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.write("KeyboardInterrupt\n")
        sys.stdout.flush()
        return False
    return ok
