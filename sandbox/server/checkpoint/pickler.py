"""A pickler for what was made in cells.

Functions are rebuilt over the names of the kernel that reads them, and share their closures as before. Without
cloudpickle, classes are written out as long as they are plain ones. What would come back as something else is refused.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import marshal
import pickle  # noqa: TID251 - of what is the sandbox's own, inside
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

REBUILD = "__prorl_rebuild__"  # a module of the kernel that names in pickles lead to
SKIPPED_OF_CLASSES = frozenset(("__dict__", "__weakref__", "__module__", "__qualname__", "_abc_impl", "__doc__"))


def pickler(sink: Any, names: dict[str, Any]) -> pickle.Pickler:
    """A pickler of the kernel whose cells have these names."""
    rebuilding(names)
    base: type = pickle.Pickler
    with contextlib.suppress(ImportError):
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

        base = cloudpickle.Pickler

    class CellPickler(base):  # type: ignore[misc,valid-type,unused-ignore]
        """Refuses by an exception, writes out what cells have made, and leaves all else to its base."""

        def reducer_override(self, value: Any) -> Any:
            refuse(value)
            reduced = reduce_part(value, names)
            if reduced is not NotImplemented:
                return reduced
            return reduce_plain(value) if base is pickle.Pickler else super().reducer_override(value)

    made: pickle.Pickler = CellPickler(sink, 5)
    return made


def refuse(value: Any) -> None:
    """Raises `PicklingError` for what would come back as something else."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, io.IOBase) and not isinstance(value, (io.BytesIO, io.StringIO)):
        raise pickle.PicklingError("a file that is open")
    if type(value).__name__ == "_lru_cache_wrapper":
        raise pickle.PicklingError("a function that remembers its results")
    if numpy is not None and isinstance(value, getattr(numpy, "memmap", ())):
        raise pickle.PicklingError("an array in a file")


def reduce_part(value: Any, names: dict[str, Any]) -> Any:
    """The way to write out a function, or a part of one or of a class. `NotImplemented` for anything else."""
    kind = type(value)
    if kind is types.FunctionType:
        return reduce_function(value, names)
    if kind.__module__ == "dataclasses":
        library = sys.modules["dataclasses"]
        name = next((name for name, known in vars(library).items() if known is value), None)
        return NotImplemented if name is None else (getattr, (library, name))
    reducer = REDUCERS.get(kind)
    return NotImplemented if reducer is None else reducer(value)


def reduce_cell(value: Any) -> Any:
    try:
        return rebuilt("cell"), (), value.cell_contents, None, None, rebuilt("fill_cell")
    except ValueError:
        return rebuilt("cell"), ()


def reduce_module(value: Any) -> Any:
    name = value.__name__
    if sys.modules.get(name) is not value or name == "__main__":
        raise pickle.PicklingError(f"module {name}, which cannot be imported")
    return importlib.import_module, (name,)


REDUCERS: dict[type, Callable[[Any], Any]] = {
    types.CellType: reduce_cell,
    types.ModuleType: reduce_module,
    property: lambda value: (property, (value.fget, value.fset, value.fdel, value.__doc__)),
    staticmethod: lambda value: (staticmethod, (value.__func__,)),
    classmethod: lambda value: (classmethod, (value.__func__,)),
    types.MappingProxyType: lambda value: (rebuilt("proxy"), (dict(value),)),
}


def reduce_function(function: types.FunctionType, names: dict[str, Any]) -> Any:
    """A function that can be imported is left alone; others come back over the names of their module."""
    if function.__module__ == REBUILD:
        return NotImplemented
    module = function.__globals__.get("__name__")
    if function.__globals__ is names:
        module = None
    elif not isinstance(module, str) or vars(sys.modules.get(module, types)) is not function.__globals__:
        return NotImplemented  # it has names of its own
    elif imported(module, function.__qualname__) is function:
        return NotImplemented
    made = (marshal.dumps(function.__code__), module, function.__name__, function.__closure__)
    state = {
        "__defaults__": function.__defaults__, "__kwdefaults__": function.__kwdefaults__,
        "__annotations__": function.__annotations__, "__doc__": function.__doc__, "__module__": function.__module__,
        "__qualname__": function.__qualname__, "": function.__dict__,
    }  # fmt: skip
    return rebuilt("function"), made, state, None, None, rebuilt("finish_function")


def imported(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def reduce_plain(value: Any) -> Any:
    """Without cloudpickle: what a name of the cells leads to is written out, or refused."""
    if isinstance(value, type):
        return reduce_class(value)
    if type(value) is types.FunctionType and value.__module__ == "__main__":
        raise pickle.PicklingError(f"function {value.__qualname__}, which needs cloudpickle in the image")
    return NotImplemented


def reduce_class(kind: type) -> Any:
    """A class made in a cell, without cloudpickle. Raises `PicklingError` for one that this cannot write out."""
    module = kind.__module__
    if module != "__main__":
        return NotImplemented
    meta = type(kind)
    abstract = meta.__module__ == "abc" and meta.__name__ == "ABCMeta"
    if not (meta is type or abstract) or "__slots__" in vars(kind):
        raise pickle.PicklingError(f"class {kind.__qualname__}, which needs cloudpickle in the image")
    state = {name: value for name, value in vars(kind).items() if name not in SKIPPED_OF_CLASSES}
    first = {"__module__": module, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made = (meta, kind.__name__, kind.__bases__, first)
    return rebuilt("class"), made, state, None, None, rebuilt("finish_class")


def rebuilt(name: str) -> Any:
    return vars(sys.modules[REBUILD])[name]


def rebuilding(names: dict[str, Any]) -> None:
    """Makes the module that pickles name, over the names of this kernel."""

    def function(code: bytes, module: str | None, name: str, closure: Any) -> types.FunctionType:
        known = names if module is None else vars(importlib.import_module(module))
        return types.FunctionType(marshal.loads(code), known, name, None, closure)  # noqa: S302

    module = types.ModuleType(REBUILD)
    for name, maker in (
        ("function", function), ("finish_function", finish_function), ("cell", make_cell), ("fill_cell", fill_cell),
        ("proxy", make_proxy), ("class", make_class), ("finish_class", finish_class),
    ):  # fmt: skip
        maker.__module__, maker.__qualname__, maker.__name__ = REBUILD, name, name
        setattr(module, name, maker)
    sys.modules[REBUILD] = module


def finish_function(made: types.FunctionType, state: dict[str, Any]) -> None:
    vars(made).update(state.pop(""))
    for name, value in state.items():
        setattr(made, name, value)


def make_cell() -> Any:
    return types.CellType()


def fill_cell(made: Any, content: Any) -> None:
    made.cell_contents = content


def make_proxy(shown: dict[Any, Any]) -> Any:
    return types.MappingProxyType(shown)


def make_class(meta: Any, name: str, bases: tuple[type, ...], first: dict[str, Any]) -> Any:
    return meta(name, bases, dict(first))


def finish_class(made: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(made, name, value)
