"""The execution server as the one file that goes into a sandbox."""

import functools
import subprocess
from importlib import resources

from sandbox.errors import SandboxUnavailable

MODULES = (
    "frames", "capture", "libc", "processes", "entry", "children", "daemon", "shell_input", "terminal",
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
JOINED = ("from __future__ import ", "from sandbox.server.")


@functools.cache
def server_source() -> bytes:
    """The server's modules, each after those it needs. Those of checkpoints are in it as text, for who needs them."""
    last = f"CHECKPOINT = {checkpoint_source()!r}\n"
    return "".join(
        ["from __future__ import annotations\n", *map(_joined, MODULES[:-1]), last, _joined("main")]
    ).encode()


def checkpoint_source() -> str:
    parts = (_joined(f"checkpoint/{name}") for name in CHECKPOINT_MODULES)
    return "".join(["from __future__ import annotations\n", *parts])


def _joined(name: str) -> str:
    """A module without the imports that joining it to others makes needless."""
    text = resources.files("sandbox.server").joinpath(f"{name}.py").read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(JOINED))


@functools.cache
def server_code(interpreter: str) -> bytes:
    """The server compiled for one interpreter of this host, which halves a sandbox's start. Blocks the first time."""
    try:
        command = [interpreter, "-I", "-S", "-c", COMPILE]
        return subprocess.run(command, input=server_source(), stdout=subprocess.PIPE, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxUnavailable(f"the base image needs a working {interpreter}: {error}") from error
