"""The names of the kernel, kept and brought back by the kernel itself.

They are pickled together, so that what two of them share stays shared. What was made in a cell is written out:
functions with their code, to see the names of the new kernel, and classes. cloudpickle writes more of these, where the
image has it. Nothing is kept that would come back as something else, such as an open file.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle  # noqa: TID251 - of what is the sandbox's own, inside
import re
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from sandbox.server.cells import LENGTH
from sandbox.server.checkpoint.pickler import pickler, rebuilding

if TYPE_CHECKING:
    from sandbox.server.cells import IPythonCells, PlainCells

OWN_NAMES = re.compile(r"_(?:_|__|i|ii|iii|i?\d+|oh|dh|ih)?$|In$|Out$|__.*__$")
MOST_NAMED = 50


class OverLimit(Exception):
    """The pickle is longer than what may be kept."""


class KernelState:
    """The names of one kernel, and what else of its process a cell can change."""

    def __init__(self, cells: PlainCells | IPythonCells, names: dict[str, Any], environment: dict[str, str]) -> None:
        """`names` and `environment`: those of the kernel before its first cell."""
        self._cells, self._first, self._environment = cells, names, environment

    def obey(self, order: dict[str, Any], memory: int) -> bool:
        """Keeps what it has in the file `memory`, or becomes what is there. An error of that is an answer, too."""
        try:
            if order["do"] == "save":
                answer, data = self._saved(int(order["limit"]))
            elif order["do"] == "stand":
                os.chdir(os.getcwd())
                answer, data = {}, b""
            else:
                answer, data = self._restored(os.pread(memory, os.fstat(memory).st_size, 0)), b""
            head = json.dumps(answer).encode()
            os.ftruncate(memory, 0)
            os.lseek(memory, 0, os.SEEK_SET)
            left = memoryview(LENGTH.pack(len(head)) + head + data)
            while left:
                left = left[os.write(memory, left) :]
        except OSError:
            return False
        return True

    def _own(self) -> dict[str, Any]:
        """The names that cells have made, or given another value."""
        first = self._first
        missing = object()
        return {
            name: value
            for name, value in list(self._cells.names.items())
            if isinstance(name, str) and not OWN_NAMES.match(name) and first.get(name, missing) is not value
        }

    def _saved(self, limit: int) -> tuple[dict[str, Any], bytes]:
        threads = [found.name for found in threading.enumerate() if found is not threading.main_thread()]
        lost = [f"thread {name} of the kernel" for name in threads[:MOST_NAMED]]
        if "matplotlib.pyplot" in sys.modules and sys.modules["matplotlib.pyplot"].get_fignums():
            lost.append("open figures of matplotlib")
        names = self._own()
        data, why = self._pickled(names, limit)
        if data is None:
            for name, value in list(names.items()):
                _, why = self._pickled({name: value}, limit)
                if why:
                    del names[name]
                    lost.append(f"name {name} of the kernel: {why}")
            data, why = self._pickled(names, limit)
        if data is None:
            return {"lost": [*lost, f"all names of the kernel: {why}"], "threads": len(threads)}, b""
        return {"lost": lost, "threads": len(threads)}, data

    def _pickled(self, names: dict[str, Any], limit: int) -> tuple[bytes | None, str]:
        """The process first, for what is imported then: nothing but plain values is in that."""
        sink = BoundedSink(limit)
        try:
            pickle.dump(self._process(names), sink, 5)
            pickler(sink, self._cells.names).dump(names)
        except KeyboardInterrupt:
            raise
        except OverLimit:
            return None, f"it is longer than {limit} bytes"
        except BaseException as error:  # whatever a cell's own classes do
            return None, f"{type(error).__name__}: {error}"[:200]
        return sink.data(), ""

    def _process(self, names: dict[str, Any]) -> dict[str, Any]:
        """Raises `OSError` in a directory that cannot be entered again."""
        now, here, mask = dict(os.environ), os.getcwd(), os.umask(0o77)
        os.umask(mask)
        if not os.access(here, os.X_OK):
            raise PermissionError(f"the kernel's directory {here} cannot be entered")
        modules = tuple(f"{value.__name__}." for value in names.values() if isinstance(value, types.ModuleType))
        return {
            "cwd": here,
            "umask": mask,
            "recursion": sys.getrecursionlimit(),
            "path": list(sys.path),
            "set": {name: value for name, value in now.items() if self._environment.get(name) != value},
            "unset": [name for name in self._environment if name not in now],
            "gone": [name for name in self._first if name not in self._cells.names],
            "count": self._cells.count,
            "modules": [name for name in list(sys.modules) if name.startswith(modules)],
            "random": sys.modules["random"].getstate() if "random" in sys.modules else None,
            "numpy": sys.modules["numpy.random"].get_state() if "numpy.random" in sys.modules else None,
            "decimal": sys.modules["decimal"].getcontext() if "decimal" in sys.modules else None,
        }

    def _restored(self, data: bytes) -> dict[str, Any]:
        """Nothing but a kernel of the same sandbox reads this: a pickle can do whatever its maker could there."""
        try:
            rebuilding(self._cells.names)
            stream = io.BytesIO(data)
            process = pickle.load(stream)  # noqa: S301
            os.chdir(process["cwd"])
            sys.path[:] = process["path"]
            for name in process["unset"]:
                os.environ.pop(name, None)
            os.environ.update(process["set"])
            if "umask" in process:  # an older release says nothing of these three
                os.umask(process["umask"])
                sys.setrecursionlimit(process["recursion"])
            if process.get("decimal") is not None:
                importlib.import_module("decimal").setcontext(process["decimal"])
            names = pickle.load(stream)  # noqa: S301
            for name in [*self._own(), *process["gone"]]:
                self._cells.names.pop(name, None)
            self._cells.names.update(names)
            self._cells.count = process["count"]
            for name in process["modules"]:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            for name, module in (("random", "random"), ("numpy", "numpy.random")):
                if process[name] is not None:
                    drawn = importlib.import_module(module)
                    (drawn.set_state if name == "numpy" else drawn.setstate)(process[name])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}
        return {}


class BoundedSink:
    """A file in memory that refuses to become longer than `limit`."""

    def __init__(self, limit: int) -> None:
        self._parts: list[bytes] = []
        self._left = limit

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._left -= len(piece)
        if self._left < 0:
            raise OverLimit
        self._parts.append(piece)
        return len(piece)

    def data(self) -> bytes:
        return b"".join(self._parts)
