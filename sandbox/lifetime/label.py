"""The trace of a sandbox on the host: its private directory, with a label that names its owner."""

import contextlib
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from sandbox.host.process import is_alive, start_time
from sandbox.host.trees import remove_tree
from sandbox.lifetime import mounts
from sandbox.protocol import SandboxHandle

LABEL = "label.json"
SOCKET = "socket"
MARK = "PRORL_SANDBOX_ID"
REMOVING = ".gone"  # of the names of directories whose sandbox is dead: anybody may finish the removal
log = logging.getLogger(__name__)


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Maker and owner of a sandbox. Until its process is known, `pid` is 0 and only its maker can vouch for it."""

    owner: str
    kind: str
    node: str
    sandbox_id: str
    maker_pid: int
    maker_started: str
    pid: int = 0
    pid_started: str = ""
    front_pid: int = 0  # the isolator's own process outside, where there is one; it ends by itself after `pid`
    front_started: str = ""
    server_pid: int = 0  # the execution server, where it stands outside
    server_started: str = ""
    cgroups: tuple[str, ...] = ()  # the directories of its control groups, where it has some
    door: str = ""  # the directory that it shares with the host, where it has one
    writable: str = ""  # the ways in which it may write to directories of its image, where it may
    disk: str = ""  # the directory of what it holds on disk, where it holds anything there

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.pid_started)

    @property
    def maker_alive(self) -> bool:
        return is_alive(self.maker_pid, self.maker_started)

    @property
    def unfinished(self) -> bool:
        """Its maker is still at work on it."""
        return self.pid == 0 and self.maker_alive


def root(state_dir: Path) -> Path:
    return state_dir / "sandboxes"


def make_directory(state_dir: Path, *, owner: str, kind: str, node: str) -> tuple[Path, Label]:
    """A new private directory that carries a label from its first moment under its final name."""
    root(state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    sandbox_id = secrets.token_hex(8)
    label = Label(
        owner=owner, kind=kind, node=node, sandbox_id=sandbox_id,
        maker_pid=os.getpid(), maker_started=start_time(os.getpid()) or "",
    )  # fmt: skip
    # The name of what has no label yet says who is at work on it.
    hidden = root(state_dir) / f".{sandbox_id}@{quote(node, safe='')}@{label.maker_pid}@{label.maker_started}"
    hidden.mkdir(mode=0o700)
    write(hidden, label)
    directory = root(state_dir) / sandbox_id
    hidden.rename(directory)
    return directory, label


def half_made(directory: Path) -> tuple[str, bool] | None:
    """Of a directory that has no label yet: its node, and whether its maker lives. None for any other."""
    parts = directory.name.split("@")
    if not directory.name.startswith(".") or len(parts) != 4 or not parts[2].isdecimal():
        return None
    return unquote(parts[1]), is_alive(int(parts[2]), parts[3])


def write(directory: Path, label: Label) -> None:
    fresh = directory / f"{LABEL}.new"
    fresh.write_bytes(msgspec.json.encode(label))
    fresh.replace(directory / LABEL)


def relabel(directory: Path, sandbox_id: str, owner: str) -> bool:
    """Gives a sandbox to another owner, at one moment. False if it is gone. Only its owner may do so."""
    made = read(directory)
    if made is None or made.sandbox_id != sandbox_id:
        return False
    try:
        write(directory, msgspec.structs.replace(made, owner=owner))
    except FileNotFoundError:
        return False
    return True


def mark(state_dir: Path, sandbox_id: str = "") -> str:
    """Mark that a sandbox's first process has in its environment from the start, also before its label is complete.

    It names the directory of all sandboxes as the kernel does: another container may use the same path.
    """
    found = root(state_dir).stat()
    return f"{found.st_dev:x}-{found.st_ino:x}-{sandbox_id}"


def marked(directory: Path) -> dict[str, str]:
    """The environment with the mark of the sandbox in this directory."""
    return {MARK: mark(directory.parent.parent, directory.name)}


def read(directory: Path) -> Label | None:
    try:
        return msgspec.json.decode((directory / LABEL).read_bytes(), type=Label)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def handle_of(directory: Path, label: Label) -> SandboxHandle:
    return SandboxHandle(
        kind=label.kind, node=label.node, sandbox_id=label.sandbox_id, directory=str(directory),
        pid=label.pid, pid_started=label.pid_started, door=label.door,
    )  # fmt: skip


def labelled(state_dir: Path) -> list[tuple[Path, Label]]:
    """Every sandbox under this state directory, alive or dead."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for directory in sorted(root(state_dir).iterdir()):
            label = None if directory.name.startswith(".") else read(directory)
            if label is not None:
                found.append((directory, label))
    return found


@contextlib.contextmanager
def socket_address(directory: Path, name: str = SOCKET) -> Iterator[str]:
    """The address of a sandbox's socket. It goes through a descriptor: a socket's path has at most 107 bytes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(directory: Path, name: str = SOCKET) -> socket.socket:
    """A listening socket in the directory, made here so that the directory need not be visible inside."""
    listener = socket.socket(socket.AF_UNIX)
    with socket_address(directory, name) as address:
        listener.bind(address)
    listener.listen(128)
    return listener


def remove(directory: Path) -> None:
    """Removes what is left on the host, its name first; others may be removing it too."""
    made = read(directory)
    if made is not None and made.door:
        shutil.rmtree(made.door, ignore_errors=True)
    if made is not None and made.disk:
        remove_tree(Path(made.disk))
    left = made.disk if made is not None and made.disk and os.path.lexists(made.disk) else ""
    going = directory
    if not directory.name.endswith(REMOVING):
        going = directory.with_name(f".{directory.name.lstrip('.')}{REMOVING}")
        with contextlib.suppress(OSError):
            directory.rename(going)
    if left:
        log.warning("%s cannot be removed as a whole: a sweep will try again, for %s still names it", left, going)
    elif mounts.detach_below(going):
        shutil.rmtree(going, ignore_errors=True)
