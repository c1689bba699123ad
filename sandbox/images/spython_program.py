"""Apptainer's own operations on images, through spython, as a program: spython blocks, prints, and may exit.

python -m sandbox.images.spython_program version -- COMMAND...                  which Apptainer this is
python -m sandbox.images.spython_program inspect IMAGE -- COMMAND...            the labels of an image, as JSON
python -m sandbox.images.spython_program build DIRECTORY SOURCE -- COMMAND...   makes a directory that sandboxes can run

COMMAND is how Apptainer is started here; spython takes the first `singularity` on PATH for it. Exit code 1: it failed,
and standard error says why.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spython.main import get_client

OPTIONS = ("--fix-perms", "--disable-cache")  # its owner can remove it; nothing is kept beside it


def version(client: Any) -> int:
    text = client.version()
    print(text)
    return 0 if text else 1


def inspect(client: Any, image: str) -> int:
    found = client.inspect(image)
    if "attributes" not in found:  # spython's form of a failure
        print("".join(found["message"]), file=sys.stderr)
        return 1
    print(json.dumps(found["attributes"]["labels"]))
    return 0


def build(client: Any, directory: str, source: str) -> int:
    """Streams: in its other form the call drops both what Apptainer says and that it failed."""
    options = list(OPTIONS)
    _, lines = client.build(source, directory, sandbox=True, sudo=False, stream=True, options=options)
    try:
        for line in lines:
            print(line, end="")
    except subprocess.CalledProcessError:  # its words are on standard error by now
        return 1
    return 0


def main(words: list[str]) -> int:
    calls: dict[str, Callable[..., int]] = {"version": version, "inspect": inspect, "build": build}
    at = words.index("--")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        program = Path(name, "singularity")
        program.write_text(f'#!/bin/sh\ncd / && exec {shlex.join(words[at + 1 :])} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        os.environ["PATH"] = f"{name}:{os.environ['PATH']}"
        os.environ.setdefault("APPTAINER_CONFIGDIR", str(Path(name, "config")))
        client: Any = get_client()
        client.quiet = True  # as an argument it would not reach Apptainer
        return calls[words[0]](client, *words[1:at])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
