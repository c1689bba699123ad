"""The execution server as the one file that goes into a sandbox."""

import functools
import subprocess
from collections.abc import Iterable, Mapping
from importlib import resources

from sandbox.errors import SandboxUnavailable

MODULES = (
    "frames", "capture", "libc", "sealing/calls", "sealing/filter", "sealing/seal",
    "processes", "accounting/looking", "accounting/sockets", "entry", "children", "daemon", "shell_input", "terminal",
    "shell", "images", "cells", "kernel", "programs", "editor", "files", "acts",
    "watchdog", "login", "main",
)  # fmt: skip
CHECKPOINT_MODULES = {  # of the server, of the kernel; each by the class that is asked for
    "Checkpoints": ("tree", "archive", "pack", "unpack", "shell_state", "living", "checkpoints"),
    "KernelState": ("pickler", "kernel_state"),
}
COMPILE = """\
import importlib.util, marshal, sys
code = compile(sys.stdin.buffer.read(), "server", "exec", dont_inherit=True)
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""
HEAD_BYTES = 16  # in front of the code itself
FUTURE = "from __future__ import annotations\n"
TYPING = """\
from collections import namedtuple
TYPE_CHECKING = False
class _Named(type):
    def __new__(mcs, name, bases, body):
        if not bases:
            return super().__new__(mcs, name, bases, body)
        fields = list(body.pop("__annotations__"))
        defaults = [body.pop(each) for each in fields if each in body]
        return type(name, (namedtuple(name, fields, defaults=defaults),), dict(body, __slots__=()))
class NamedTuple(metaclass=_Named):
    pass
"""  # what the server needs of `typing`, whose import takes 3 ms
JOINED = ("from __future__ import ", "from sandbox.")
QUICK = {"import signal": "import _signal as signal", "import socket": "import _socket as socket"}


@functools.cache
def server_source() -> bytes:
    """The server's modules as one. Those of checkpoints are in it as text, for who needs them."""
    return _with_checkpoints({name: checkpoint_source(name).decode() for name in CHECKPOINT_MODULES})


def _with_checkpoints(them: Mapping[str, str | bytes]) -> bytes:
    last = f"CHECKPOINT = {them!r}\n"
    modules = [_text(f"server/{name}" for name in MODULES[:-1]), last, _text(["server/main"])]
    return "".join([FUTURE, TYPING, *map(_quick, modules)]).encode()


def checkpoint_source(name: str) -> bytes:
    return _quick(joined(f"server/checkpoint/{each}" for each in CHECKPOINT_MODULES[name]).decode()).encode()


def joined(modules: Iterable[str]) -> bytes:
    """Modules of this package as one, each after those it needs."""
    return (FUTURE + _text(modules)).encode()


def _text(modules: Iterable[str]) -> str:
    """Modules without the imports that joining them makes needless."""
    package = resources.files("sandbox")
    lines: list[str] = []
    for name in modules:
        lines += package.joinpath(f"{name}.py").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(JOINED))


def _quick(text: str) -> str:
    """The server's text without `typing`, and on the parts in C of two modules, which enumerate their constants."""
    lines = (QUICK.get(line, line) for line in text.split("\n") if not line.startswith("from typing import "))
    return "\n".join(lines)


@functools.cache
def server_code(interpreter: str) -> bytes:
    """The server compiled for one interpreter of this host, which halves a sandbox's start. Blocks the first time.

    Those of checkpoints are in it as code: to compile them takes longer than to mark a sandbox.
    """
    try:
        them = {name: compiled(checkpoint_source(name), interpreter)[HEAD_BYTES:] for name in CHECKPOINT_MODULES}
        return compiled(_with_checkpoints(them), interpreter)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxUnavailable(f"the base image needs a working {interpreter}: {error}") from error


def compiled(source: bytes, interpreter: str) -> bytes:
    """A program as the interpreter reads it fastest. Raises `OSError` or `CalledProcessError`."""
    command = [interpreter, "-I", "-S", "-c", COMPILE]
    return subprocess.run(command, input=source, stdout=subprocess.PIPE, check=True).stdout
