"""Programs of ours that run in a sandbox, behind the forwarder's text."""

import functools
from pathlib import Path
from typing import Final

# The system's Python: an image's own environment, which may be first on the PATH, can have one that is too old.
_START: Final = 'exec "$(PATH=/usr/local/bin:/usr/bin:/bin command -v python3 || command -v python3)" -I -c "$@"'
_FORWARDING: Final = Path(__file__).with_name("forwarding.py")


def argv(program: Path, *arguments: str) -> list[str]:
    """Starts a program that calls `serve` of `forwarding`, as `__main__`."""
    return ["sh", "-c", _START, "sh", _text(program), *arguments]


@functools.cache
def _text(program: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (_FORWARDING, program))
