"""Answers of the shell to input that it cannot accept."""

from __future__ import annotations

TERMINAL_LINE_BYTES = 4095  # the kernel drops what is beyond, while it edits lines
BUSY = (
    "[the previous command is still running and waits for input: answer it with is_input, or stop it with is_input "
    "and the text C-c; this command was not run]"
)
IDLE = "[no command is running, so there is nothing to give this input to]"
LONG_LINE = (
    "[nothing was sent: a line of %d bytes is longer than a terminal takes (%d); write it to a file, and give the "
    "program that]"
)


def refusal(text: str, *, is_input: bool, running: bool, edits_lines: bool) -> str:
    """Why this cannot be given to the shell as it is now; empty when it can."""
    if is_input != running:
        return BUSY if running else IDLE
    if not is_input or not edits_lines:
        return ""
    longest = max(map(len, text.encode("utf-8", "replace").split(b"\n")))
    return LONG_LINE % (longest, TERMINAL_LINE_BYTES) if longest > TERMINAL_LINE_BYTES else ""
