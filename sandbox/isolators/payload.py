"""The execution server as the one file that goes into a sandbox."""

import functools
import subprocess
from collections.abc import Iterable
from importlib import resources

from sandbox.errors import SandboxUnavailable

MODULES = (
    "frames", "capture", "libc", "sealing/calls", "sealing/filter", "sealing/seal",
    "processes", "accounting/sockets", "entry", "children", "daemon", "shell_input", "terminal",
    "shell", "images", "cells", "kernel", "programs", "editor", "files", "acts",
    "watchdog", "login", "main",
)  # fmt: skip
CHECKPOINT_MODULES = (
    "tree", "archive", "pack", "unpack", "shell_state", "pickler", "kernel_state", "living", "checkpoints",
)  # fmt: skip
COMPILE = """\
import importlib.util, marshal, sys
code = compile(sys.stdin.buffer.read(), "server", "exec", dont_inherit=True)
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""
FUTURE = "from __future__ import annotations\n"
JOINED = ("from __future__ import ", "from sandbox.")


@functools.cache
def server_source() -> bytes:
    """The server's modules as one. Those of checkpoints are in it as text, for who needs them."""
    last = f"CHECKPOINT = {checkpoint_source()!r}\n"
    return "".join([FUTURE, _text(f"server/{name}" for name in MODULES[:-1]), last, _text(["server/main"])]).encode()


def checkpoint_source() -> str:
    return joined(f"server/checkpoint/{name}" for name in CHECKPOINT_MODULES).decode()


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


@functools.cache
def server_code(interpreter: str) -> bytes:
    """The server compiled for one interpreter of this host, which halves a sandbox's start. Blocks the first time."""
    try:
        return compiled(server_source(), interpreter)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxUnavailable(f"the base image needs a working {interpreter}: {error}") from error


def compiled(source: bytes, interpreter: str) -> bytes:
    """A program as the interpreter reads it fastest. Raises `OSError` or `CalledProcessError`."""
    command = [interpreter, "-I", "-S", "-c", COMPILE]
    return subprocess.run(command, input=source, stdout=subprocess.PIPE, check=True).stdout
