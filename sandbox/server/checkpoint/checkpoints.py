"""Checkpoints of a sandbox: its beginning is marked, what differs from that is saved, and restored in another one.

An archive is always against the mark, so that one suffices. It is made between two acts; what changes nevertheless, or
cannot be kept, is named in the answer. Restoring asks for a sandbox that is as the saved one was at its mark.

A sandbox of the same node may share its files by layers, which the host mounts (`sandbox.isolators.layers`). Then the
archive has all but these, and the sandbox is held still from the first look until they are sealed.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple

from sandbox.server.acts import Acts, NotQuiet
from sandbox.server.cells import LENGTH
from sandbox.server.checkpoint.archive import ArchiveReader, ArchiveTooLarge, ArchiveWriter, Unrestorable, count, field
from sandbox.server.checkpoint.living import Living
from sandbox.server.checkpoint.pack import FilePacker, beginnings, changes_of
from sandbox.server.checkpoint.shell_state import STAND, NoShellState, look_at_shell, restore_shell, shell_difference
from sandbox.server.checkpoint.tree import TooManyFiles, Tree, settled_scan
from sandbox.server.checkpoint.unpack import FileUnpacker

if TYPE_CHECKING:
    from sandbox.server.editor import Editor
    from sandbox.server.kernel import Kernel
    from sandbox.server.processes import Proc
    from sandbox.server.programs import Programs
    from sandbox.server.shell import Shell

    Reply = tuple[dict[str, Any], bytes]

MOST_LOST = 50  # lines of what cannot be kept
LINE_CHARACTERS = 300
NOT_MARKED = "all of it: its beginning was not marked"
STATES = ("editor", "shell", "kernel")
NEVER = (-1, None)
LENT_S = 10.0  # that a copy waits for another one, or for a save
MOST_BYTES = 128 << 20  # of an archive, before compression; nobody gets more in one answer
MOST_RECORDS = 1_000_000
STATE_BYTES = 64 << 20  # of the shell, of the editor, of the kernel


class Tools(NamedTuple):
    """The parts of a server whose state is saved."""

    acts: Acts
    shell: Shell
    kernel: Kernel
    editor: Editor
    programs: Programs
    proc: Proc


class Marked(NamedTuple):
    """The beginning, against which everything is saved."""

    tree: Tree
    begun: list[Any]  # what the archive says of that tree
    shell: dict[str, Any]
    descriptors: dict[int, str]  # of the shell
    edits: list[Any]  # of the editor
    cells: int


class Kept(NamedTuple):
    """The content of the last archive, and what it was made from."""

    tree: Tree | None  # None: the next look at the files must be a whole one
    shell: dict[str, Any]
    shell_seen: tuple[int, int | None]  # calls and process of which it is the state; NEVER: it must be learnt again
    edits: list[Any]
    cells: int
    kernel: bytes
    kernel_lost: list[str]
    digest: str


class Checkpoints:
    """The checkpoints of one sandbox. `places`: the directories that can be written to inside; `tools`: as `Tools`."""

    def __init__(
        self, tools: tuple[Any, ...], places: tuple[str, ...], roots: tuple[int, ...], disk_bytes: int
    ) -> None:
        self._tools = Tools(*tools)
        self._places = places
        self._limit = disk_bytes + 3 * STATE_BYTES
        self._living = Living(self._tools.proc, roots, places)
        self._marked: Marked | None = None
        self._kept: Kept | None = None
        self._lasting_threads = False  # of the kernel: it may change between cells

    def answer(self, request: dict[str, Any], data: bytes, hangup: int, ask: Callable[..., dict[str, Any]]) -> Reply:
        """`hangup` turns readable when a save is to stop. `ask` sends a reply, and gives the next request.

        Raises `NotQuiet`, and `Unrestorable` when a sandbox could not be restored.
        """
        with self._quiet(LENT_S if request["op"] == "lend" else 0.0):
            if request["op"] == "mark":
                return self._mark(), b""
            if request["op"] == "save":
                try:
                    return self._save(min(int(request["max_bytes"]), MOST_BYTES), request.get("known"), hangup)
                except MemoryError:
                    return saved(self._kept, ["all of it: there is no memory to save it in"], too_large=True), b""
            if request["op"] == "lend":
                return self._lend(int(request["turn"]), hangup, ask), b""
            return self._restore(data, layered=bool(request.get("layered"))), b""

    @contextlib.contextmanager
    def _quiet(self, wait_s: float) -> Iterator[None]:
        tools = self._tools
        with tools.acts.rest(wait_s), contextlib.ExitStack() as held:
            for lock, what in ((tools.shell.lock, "a command"), (tools.kernel.lock, "a cell")):
                if not lock.acquire(blocking=False):
                    raise NotQuiet(f"{what} still runs")
                held.callback(lock.release)
            if tools.programs.runs():
                raise NotQuiet("a program still runs")
            yield

    def _mark(self) -> dict[str, Any]:
        tools = self._tools
        try:
            shell = look_at_shell(tools.shell)
            tree = settled_scan(self._places)
        except (NoShellState, TooManyFiles, OSError) as error:
            return {"lost": [f"all of it: its beginning cannot be marked: {error}"]}
        if not tree.settled:
            return {"lost": ["all of it: its files change all the time"]}
        descriptors = self._living.descriptors(tools.shell.pid)
        begun = [len(tree.closed), *beginnings(self._places, tree)]
        self._marked = Marked(tree, begun, shell, descriptors, list(tools.editor.edits), tools.kernel.cells)
        self._kept = Kept(tree, {}, NEVER, self._marked.edits, tools.kernel.cells, b"", [], "")
        return {"lost": []}

    def _save(self, limit: int, known: str | None, hangup: int) -> Reply:
        marked, kept, tools = self._marked, self._kept, self._tools
        if marked is None or kept is None:
            return saved(kept, [NOT_MARKED]), b""
        lost: list[str] = []
        shell, seen = self._shell_made(marked, kept, lost)
        kernel, kernel_lost = self._kernel_made(marked, kept, limit, hangup)
        lost += kernel_lost
        lost += self._unkept(marked)
        try:
            tree = settled_scan(self._places)
        except TooManyFiles as error:
            return saved(kept, [*lost, f"all files: there are {error}"], too_large=True), b""
        lost += [f"{path} cannot be looked into" for path in tree.closed]
        same = kept.tree is not None and tree.entries == kept.tree.entries and kept.edits == tools.editor.edits
        if same and shell == kept.shell and kernel == kept.kernel and (lost or known in (None, kept.digest)):
            self._kept = kept._replace(shell_seen=seen, cells=tools.kernel.cells, kernel_lost=kernel_lost)
            return saved(kept, lost), b""
        made = kept._replace(tree=tree, shell=shell, shell_seen=seen, kernel=kernel, kernel_lost=kernel_lost)
        return self._packed(limit, made, lost, kept.digest if known is None else known)

    def _shell_made(self, marked: Marked, kept: Kept, lost: list[str]) -> tuple[dict[str, Any], tuple[int, int | None]]:
        """Its difference from the mark, and when that was so. Between two calls only a trap changes anything."""
        shell = self._tools.shell
        seen = (shell.calls, shell.pid)
        if seen == kept.shell_seen and not shell.ended:
            return kept.shell, seen
        try:
            now = look_at_shell(shell)
        except (NoShellState, OSError) as error:
            lost.append(f"the shell's state: {error}")
            return {}, NEVER
        return shell_difference(marked.shell, now), NEVER if now["traps"] else (shell.calls, shell.pid)

    def _kernel_made(self, marked: Marked, kept: Kept, limit: int, hangup: int) -> tuple[bytes, list[str]]:
        """Its pickle, which is made where a cell has run since the last one, and a line for each name that it lacks."""
        kernel = self._tools.kernel
        if kernel.ended:
            return b"", ["the end of the kernel, which had run cells at the mark"] if marked.cells else []
        if kernel.cells == kept.cells and not self._lasting_threads:
            return kept.kernel, kept.kernel_lost
        try:
            head, data = parted(kernel.obey({"do": "save", "limit": min(limit, STATE_BYTES)}, hangup=hangup))
            self._lasting_threads = bool(head.get("threads"))
            return data, [str(line)[:LINE_CHARACTERS] for line in list(head["lost"])[:MOST_LOST]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._lasting_threads = True
            return b"", [f"all names of the kernel: {error}"]

    def _packed(self, limit: int, kept: Kept, lost: list[str], known: str) -> Reply:
        marked, tree, editor = self._marked, kept.tree, self._tools.editor
        assert marked is not None
        assert tree is not None
        before = dict(tree.entries)
        changes = changes_of(marked.tree, tree)
        writer = ArchiveWriter(limit)
        packer = FilePacker(self._places, tree, writer)
        try:
            writer.add({"t": "begin", "places": list(self._places), "begun": marked.begun})
            packer.pack(changes)
            self._add_states(writer, marked, kept.shell, kept.kernel)
        except ArchiveTooLarge:
            return saved(kept, [*lost, f"what has changed: it is more than {limit} bytes"], too_large=True), b""
        data, digest = writer.finish()
        try:
            again = settled_scan(self._places)
        except TooManyFiles:
            again = Tree({}, [], settled=False)
        restless = sorted(path for path, found in again.entries.items() if tree.entries.get(path) != found)
        restless += sorted(path for path in before if path not in again.entries)
        lost += [*packer.lost, *(f"{path} changed while it was saved" for path in restless[:MOST_LOST])]
        whole = again.settled and not restless and not packer.lost
        self._kept = kept = kept._replace(
            tree=tree if whole else None, edits=list(editor.edits), cells=self._tools.kernel.cells, digest=digest
        )
        files = len(changes.changed) + len(changes.gone)
        return saved(kept, lost, files=files, content_bytes=writer.bytes_added), b"" if digest == known else data

    def _unkept(self, marked: Marked) -> list[str]:
        """A line for each process and open file that is not of the shell or the kernel as they begin."""
        shell, kernel = self._tools.shell, self._tools.kernel
        return self._living.unkept(shell.pid, kernel.pid, marked.descriptors, kernel.memory_name, shell.stands)

    def _add_states(self, writer: ArchiveWriter, marked: Marked, shell: dict[str, Any], kernel: bytes) -> None:
        editor = self._tools.editor
        edits = json.dumps(editor.edits if editor.edits != marked.edits else None).encode()
        for name, state in zip(STATES, (edits, json.dumps(shell).encode(), kernel)):
            writer.add({"t": name, "size": len(state)}, state)
        writer.add({"t": "end"})

    def _lend(self, turn: int, hangup: int, ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """Gives all but the files, and rests until these are sealed. Raises `EOFError` where nobody says so."""
        marked, kept, tools = self._marked, self._kept, self._tools
        if tools.acts.turn > turn:
            raise NotQuiet(f"it has begun turn {tools.acts.turn}")
        if tools.acts.strayed:
            raise NotQuiet(f"its worker has used it behind turn {tools.acts.turn}")
        if marked is None or kept is None:
            return {"lost": [NOT_MARKED]}
        lost: list[str] = []
        shell, _ = self._shell_made(marked, kept, lost)
        kernel, kernel_lost = self._kernel_made(marked, kept, STATE_BYTES, hangup)
        lost += [*kernel_lost, *self._unkept(marked)]
        if lost:
            return {"lost": [line[:LINE_CHARACTERS] for line in lost[:MOST_LOST]]}
        writer = ArchiveWriter(self._limit)
        writer.add({"t": "begin", "places": list(self._places), "begun": marked.begun})
        self._add_states(writer, marked, shell, kernel)
        data, _ = writer.finish()
        try:
            sealed = int(ask({"lost": []}, data)["sealed"])
        finally:
            self._stand()
            self._kept = kept._replace(tree=None, shell_seen=NEVER)
        return {"lost": [], "sealed": sealed}

    def _stand(self) -> None:
        """Shell, kernel and server leave what was covered: to write there is refused."""
        tools = self._tools
        os.chdir(os.getcwd())
        if not tools.shell.ended:
            tools.shell.tell(STAND, ours=True)
        if not tools.kernel.ended:
            tools.kernel.obey({"do": "stand"})

    def _restore(self, data: bytes, *, layered: bool) -> dict[str, Any]:
        marked = self._marked
        if marked is None:
            raise Unrestorable("its beginning was not marked")
        reader = ArchiveReader(data, self._limit)
        if layered:
            self._stand()
        self._compare(marked, reader.record(), layered=layered)
        try:
            self._become(self._unpacked(reader), "" if layered else reader.digest)
        except Unrestorable:
            raise
        except Exception as error:
            raise Unrestorable(f"{type(error).__name__}: {error}") from error
        return {"digest": reader.digest}

    def _unpacked(self, reader: ArchiveReader) -> dict[str, bytes]:
        """Writes the files; the states that come behind them."""
        states: dict[str, bytes] = {}
        unpacker = FileUnpacker(self._places, reader)
        try:
            for _ in range(MOST_RECORDS):
                record = reader.record()
                kind = record.get("t")
                if kind == "end":
                    unpacker.finish()
                    return states
                if kind in STATES:
                    states[kind] = reader.read(count(record, "size", STATE_BYTES))
                else:
                    unpacker.apply(record)
        finally:
            unpacker.close()
        raise Unrestorable("the checkpoint has too many records")

    def _compare(self, marked: Marked, begin: dict[str, Any], *, layered: bool) -> None:
        """It must be as it was at its mark, and as the saved one was at its own, but for times and contents. What is
        covered by layers cannot be looked at any more, and does not matter.
        """
        if not layered and settled_scan(self._places).entries != marked.tree.entries:
            raise Unrestorable("this sandbox is no fresh one: files have changed since it was marked")
        if begin.get("t") != "begin" or begin.get("places") != list(self._places):
            raise Unrestorable("the checkpoint is of another kind of sandbox: other places can be written to")
        begun = field(begin, "begun", list)
        if begun != marked.begun:
            other = [place for place, one, two in zip(self._places, marked.begun[1:], begun[1:]) if one != two]
            raise Unrestorable(f"the saved sandbox began with other files in {', '.join(other) or 'its places'}")

    def _become(self, states: dict[str, bytes], digest: str) -> None:
        """Without a digest, files are there that the archive does not have: the next one is made of all."""
        tools, marked = self._tools, self._marked
        assert marked is not None
        shell = json.loads(states["shell"])
        if shell:
            restore_shell(tools.shell, shell)
        edits = json.loads(states["editor"])
        if edits is not None:
            tools.editor.edits = [(str(path), None if text is None else str(text)) for path, text in edits]
        if states["kernel"]:
            head, _ = parted(tools.kernel.obey({"do": "restore"}, states["kernel"]))
            if "error" in head:
                raise Unrestorable(f"the kernel: {str(head['error'])[:LINE_CHARACTERS]}")
        now = settled_scan(self._places) if digest else None
        self._kept = Kept(now, shell, NEVER, list(tools.editor.edits), tools.kernel.cells, states["kernel"], [], digest)


def saved(kept: Kept | None, lost: list[str], **more: Any) -> dict[str, Any]:
    """The head of an answer to `save`."""
    shown = [line[:LINE_CHARACTERS] for line in lost[:MOST_LOST]]
    shown += [f"{len(lost) - MOST_LOST} more"] if len(lost) > MOST_LOST else []
    digest = kept.digest if kept is not None and not more.get("too_large") else ""
    return {"digest": digest, "files": 0, "content_bytes": 0, "lost": shown, "too_large": False, **more}


def parted(given: bytes | None) -> tuple[dict[str, Any], bytes]:
    """The head and the rest of what the kernel has answered. Raises `ValueError` or `TypeError` for none."""
    if given is None or len(given) < LENGTH.size:
        raise ValueError("it does not answer")
    size = LENGTH.unpack_from(given)[0]
    head = json.loads(given[LENGTH.size : LENGTH.size + size])
    if not isinstance(head, dict):
        raise TypeError("its answer is none")
    return head, given[LENGTH.size + size :]
