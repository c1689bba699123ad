"""The file editor that agents call `str_replace_editor`."""

from __future__ import annotations

import os
from typing import Any

SNIPPET_LINES = 4
VIEW_CHARACTERS = 60000
FILE_BYTES = 64 << 20
UNDO_STEPS = 1000
UNDO_CHARACTERS = 64 << 20  # of what these many edits remember together
COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
KNOWN = ", ".join(COMMANDS)


class EditRefused(Exception):
    """The edit cannot be done; the text is for the agent."""


class Editor:
    """Edits files, and remembers what they held so that edits can be undone."""

    def __init__(self) -> None:
        self.edits: list[tuple[str, str | None]] = []  # paths, and what was there before; None: nothing

    def run(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        command, path = request["command"], request["path"]
        try:
            text = self._dispatch(command, path, request)
        except EditRefused as refusal:
            return {"ok": False}, _encode(str(refusal))
        except (OSError, ValueError, MemoryError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return {"ok": False}, _encode(f"{path} cannot be edited: {reason}")
        return {"ok": True}, _encode(text)

    def _dispatch(self, command: str, path: str, request: dict[str, Any]) -> str:
        if command not in COMMANDS:
            raise EditRefused(f"Unknown command {command!r}. The commands are: {KNOWN}.")
        if not os.path.isabs(path):
            raise EditRefused(f"The path {path} is not absolute: it must start with /.")
        return str(getattr(self, "_" + command)(path, request))

    def _view(self, path: str, request: dict[str, Any]) -> str:
        view_range = request["view_range"]
        if os.path.isdir(path):
            if view_range:
                raise EditRefused(f"view_range is for files; {path} is a directory.")
            return _directory(path)
        lines = _load(path).split("\n")
        first, last = 1, len(lines)
        if view_range:
            first, last = view_range
            if not 1 <= first <= len(lines):
                raise EditRefused(f"Invalid view_range {view_range}: the first line must be in [1, {len(lines)}].")
            if last != -1 and last < first:
                raise EditRefused(f"Invalid view_range {view_range}: the last line is before the first.")
            last = len(lines) if last == -1 else min(last, len(lines))
        return f"Here's the result of running `cat -n` on {path}:\n{_numbered(lines[first - 1 : last], first)}\n"

    def _create(self, path: str, request: dict[str, Any]) -> str:
        text = request["file_text"]
        if text is None:
            raise EditRefused("create needs file_text.")
        if os.path.lexists(path):
            raise EditRefused(f"{path} exists already: create does not overwrite. Use str_replace or insert.")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _store(path, text)
        self._remember(path, None)
        return f"File created successfully at: {path}"

    def _str_replace(self, path: str, request: dict[str, Any]) -> str:
        old, new = request["old_str"], request["new_str"] or ""
        if not old:
            raise EditRefused("str_replace needs old_str, the text to replace.")
        if old == new:
            raise EditRefused("old_str and new_str are the same: nothing would change.")
        text = _load(path)
        count = text.count(old)
        if count == 0:
            raise EditRefused(f"No replacement was performed: old_str did not appear verbatim in {path}.")
        if count > 1:
            raise EditRefused(
                f"No replacement was performed: old_str appears {count} times in {path}, at lines "
                f"{_lines_of(text, old)}. Give more of the text around it, so that it is unique."
            )
        at = text.index(old)
        self._change(path, text, text[:at] + new + text[at + len(old) :])
        return _edited(path, text[:at] + new + text[at + len(old) :], text.count("\n", 0, at), new.count("\n"))

    def _insert(self, path: str, request: dict[str, Any]) -> str:
        after, new = request["insert_line"], request["new_str"]
        if after is None or new is None:
            raise EditRefused("insert needs insert_line and new_str.")
        text = _load(path)
        lines = text.split("\n")
        count = len(lines) - 1 if text.endswith("\n") else len(lines)
        count = 0 if text == "" else count
        if not 0 <= after <= count:
            raise EditRefused(f"Invalid insert_line {after}: it must be in [0, {count}].")
        added = new[:-1].split("\n") if new.endswith("\n") else new.split("\n")
        result = "\n".join(lines[:after] + added + lines[after:])
        self._change(path, text, result)
        return _edited(path, result, after, len(added) - 1)

    def _undo_edit(self, path: str, _: dict[str, Any]) -> str:
        at = max((at for at, (edited, _) in enumerate(self.edits) if edited == path), default=-1)
        if at < 0:
            raise EditRefused(f"No edit of {path} is known that could be undone.")
        before = self.edits[at][1]
        if before is None:
            os.unlink(path)
            text = f"Last edit to {path} undone successfully: the file is gone again."
        else:
            _store(path, before)
            text = "Last edit to {} undone successfully.\n{}\n".format(path, _numbered(before.split("\n"), 1))
        del self.edits[at]
        return text

    def _change(self, path: str, before: str, after: str) -> None:
        _store(path, after)
        self._remember(path, before)

    def _remember(self, path: str, before: str | None) -> None:
        self.edits.append((path, before))
        held = sum(len(text or "") for _, text in self.edits)
        while held > UNDO_CHARACTERS or len(self.edits) > UNDO_STEPS:
            held -= len(self.edits.pop(0)[1] or "")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _load(path: str) -> str:
    if not os.path.exists(path):
        raise EditRefused(f"The path {path} does not exist.")
    if not os.path.isfile(path):
        raise EditRefused(f"The path {path} is a directory or a special file: only view shows directories.")
    if os.path.getsize(path) > FILE_BYTES:
        raise EditRefused(f"{path} is larger than {FILE_BYTES >> 20} MiB: use the shell.")
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def _store(path: str, text: str) -> None:
    """Writes into the same file, so that mode, owner and links stay."""
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        stream.write(text)


def _numbered(lines: list[str], first: int) -> str:
    text = "\n".join(f"{first + index:6d}\t{line}" for index, line in enumerate(lines))
    if len(text) <= VIEW_CHARACTERS:
        return text
    return text[:VIEW_CHARACTERS] + "\n[clipped: use view_range to see the rest, or search with grep -n]"


def _edited(path: str, text: str, line: int, added: int) -> str:
    lines = text.split("\n")
    first = max(0, line - SNIPPET_LINES)
    snippet = _numbered(lines[first : line + added + SNIPPET_LINES + 1], first + 1)
    return (
        f"The file {path} has been edited. Here's the result of running `cat -n` on a snippet of {path}:\n{snippet}\n"
        "Review the changes and make sure they are as expected. Edit the file again if necessary."
    )


def _lines_of(text: str, part: str) -> list[int]:
    found, at = [], text.find(part)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return found


def _directory(path: str) -> str:
    """Listing of a directory, two levels deep, hidden entries left out."""
    listing = [path.rstrip("/") + "/"]
    hidden = 0
    for name in sorted(os.listdir(path)):
        if name.startswith("."):
            hidden += 1
            continue
        entry = os.path.join(path, name)
        listing.append(_entry(entry))
        if os.path.isdir(entry) and not os.path.islink(entry):
            try:
                names = sorted(os.listdir(entry))
            except OSError:
                continue
            listing += [_entry(os.path.join(entry, inner)) for inner in names if not inner.startswith(".")]
    note = f"\n\n{hidden} hidden files/directories in this directory are excluded." if hidden else ""
    text = "\n".join(listing)
    if len(text) > VIEW_CHARACTERS:
        text = text[:VIEW_CHARACTERS] + "\n[clipped]"
    return f"Here's the files and directories up to 2 levels deep in {path}, excluding hidden items:\n{text}{note}"


def _entry(path: str) -> str:
    return path + "/" if os.path.isdir(path) else path
