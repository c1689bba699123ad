"""A Dockerfile as a definition file of Apptainer and a script: pure functions of its steps, and the image's name."""

import hashlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from workers.handlers.harbor.dockerfile import CopyStep, Dockerfile, RunStep, Unbuildable

BUILT = "built:"
CONTEXT = "/.prorl-context"  # the files of the context while the image is made
FILES, STEPS = "files", "steps.sh"
PLACES = ("/logs", "/tests", "/solution")
_FORM = b"1"  # of definition files: another one makes other images
CACHES = {".git", ".DS_Store", "__pycache__"}


def digest(directory: Path) -> str:
    """Names an image by everything that goes into it: the Dockerfile and the files beside it. Blocks.

    Caches are not part of the image. What FROM names is not in it: pin that by a digest, or build again by hand.
    """
    if (directory / ".dockerignore").exists():
        raise Unbuildable("environment/.dockerignore is not supported: remove it and what it names")
    made = hashlib.sha256(_FORM)
    for path in sorted(directory.rglob("*")):
        inner = path.relative_to(directory)
        if CACHES & set(inner.parts):
            continue
        if path.is_symlink():  # a directory, too: its content would be in the image and not in the name
            raise Unbuildable(f"environment/{inner} is a link; put the file there")
        if path.is_dir():
            continue
        if not path.is_file():
            raise Unbuildable(f"environment/{inner} is no file; remove it")
        about = path.stat()
        made.update(f"{inner} {about.st_mode & 0o111:o} {about.st_size}\n".encode())
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                made.update(piece)
    return made.hexdigest()[:24]


def definition(bootstrap: str, source: str, context: Path) -> str:
    """The text of the definition file. Nothing of a Dockerfile is in it but the name of its image: a line of one could
    begin a section of this file, and some of these run on the host.
    """
    lines = [f"Bootstrap: {bootstrap}", f"From: {source}", "%files", f"    {context} {CONTEXT}"]
    return "\n".join([*lines, "%post", f"    sh {CONTEXT}/{STEPS}", f"    cd / && rm -rf {CONTEXT}", ""])


def script(built: Dockerfile) -> str:
    """The commands that make the image, from the context's files in `FILES` beside this script."""
    lines = ["set -eu", f"mkdir -p {' '.join(PLACES)}"]
    lines += [line for step in built.steps for line in _step(step)]
    return "\n".join([*lines, f"mkdir -p {shlex.quote(built.workdir or '/')}", ""])


def _step(step: RunStep | CopyStep) -> Iterator[str]:
    if isinstance(step, CopyStep):
        yield _copied(step)
        return
    values = " ".join(f"{name}={shlex.quote(value)}" for name, value in step.environment.items())
    inner = f"mkdir -p {shlex.quote(step.workdir)} && cd {shlex.quote(step.workdir)}\n{step.command}"
    yield f"env {values} /bin/sh -ec {shlex.quote(inner)}"


def _copied(step: CopyStep) -> str:
    """As COPY does: a directory's content, a file under the target's name or into it. Patterns are the shell's."""
    target = shlex.quote(step.target)
    patterns = " ".join(f"{CONTEXT}/{FILES}/{_pattern(source)}" for source in step.sources)
    into = "1" if step.target.endswith("/") else "0"
    mode = f'chmod -R {shlex.quote(step.mode)} "$to"' if step.mode else ":"
    return (
        f"for from in {patterns}; do to={target}; "
        'if [ -d "$from" ]; then mkdir -p "$to"; cp -a "$from/." "$to"; '
        f'elif [ -e "$from" ]; then if [ {into} = 1 ] || [ -d "$to" ]; then mkdir -p "$to"; '
        'to="${to%/}/${from##*/}"; '
        'else mkdir -p "$(dirname "$to")"; fi; cp -a "$from" "$to"; '
        f'else echo "COPY: there is no $from" >&2; exit 1; fi; {mode}; done'
    )


def _pattern(source: str) -> str:
    """Quoted for the shell, except for what makes a pattern."""
    return "".join(each if each in "*?[]" else shlex.quote(each) for each in source)
