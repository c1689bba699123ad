"""Directories of small tasks, made for one test each."""

from collections.abc import Mapping
from pathlib import Path

IMAGE = "prorl/base"  # what `images.json` of the tests knows
TOML = f"""
schema_version = "1.4"
[environment]
docker_image = "{IMAGE}"
workdir = "/srv"
"""
SOLVED = '[ "$(cat /srv/answer 2>/dev/null)" = 42 ]; echo $((1 - $?)) >/logs/verifier/reward.txt\n'


def write(directory: Path, files: Mapping[str, str]) -> Path:
    """A task with these files; those that every task has are there already. An empty text takes one away."""
    usual = {
        "task.toml": TOML,
        "instruction.md": "Write 42 into /srv/answer.\n",
        "tests/test.sh": f"#!/bin/sh\n{SOLVED}",
        "solution/solve.sh": "#!/bin/sh\necho 42 >answer\n",
    }
    for name, text in {**usual, **files}.items():
        path = directory / name
        if not text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            path.chmod(0o755)
    (directory / "environment").mkdir(exist_ok=True)
    return directory


def toml(table: str, fields: str) -> str:
    """The usual task.toml with more fields in one of its tables; `table` may be one that it lacks."""
    if table == "environment":
        return f"{TOML}{fields}\n"
    head = f"[{table}]\n" if table else ""
    return f"{fields}\n{TOML}" if not table else f"{TOML}\n{head}{fields}\n"
