"""Text for people: control characters that came with data are shown, not obeyed by the terminal.

A job's id, an error and a worker's log line may hold what a sandbox or a tenant has chosen: escapes that clear the
screen, rename the window, or make a line look like another one.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

# C0 but for tabulator and newline, DEL, C1, and the marks that turn the direction of writing
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with control characters written as JSON writes them; JSON stays the same JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The same, where a newline would begin a line that looks like another's."""
    return visible(text).replace("\n", "\\n")


class Screen:
    """A text stream that shows control characters. What moves the cursor on purpose goes to `control`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(visible(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def control(self, sequence: str) -> None:
        """Writes a sequence as it is."""
        self._stream.write(sequence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def control(stream: TextIO, sequence: str) -> None:
    """A sequence of our own, such as one that clears the line."""
    if isinstance(stream, Screen):
        stream.control(sequence)
    else:
        stream.write(sequence)


def attended(*streams: TextIO) -> bool:
    """True where a person sits at the terminal of all these. Where `CI` is set, jobs may have a terminal and nobody."""
    return not os.environ.get("CI") and all(stream.isatty() for stream in streams)


@contextlib.contextmanager
def screens() -> Iterator[None]:
    """For a command's duration, standard output and standard error show control characters."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Screen(out), Screen(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
