"""Seals the files of a living sandbox, and lays new layers of changes over them: in it, and in a fresh one.

A program of one thread, for only such a one may enter a user namespace. It reads a request a line, and answers each
with a line. It holds nothing between two of them: all layers are mounts of the sandboxes. A place that was sealed has,
from the lowest mount up: what the isolator has mounted, and for each time a layer, a file system in memory, with an
overlay. A layer has the directory `u`, in which changes lie, and clones of all layers before it (`.prorl0` is the
isolator's own). It is reached by unmounting the overlay, in a copy of the sandbox's mounts.

    {"source": PID, "target": PID, "places": [PATH...]}  ->  {"sealed": BYTES} or {"error": TEXT, "spoilt": BOOL}

PIDs are of the first processes of the sandboxes, as seen here. BYTES: of what was sealed now. `spoilt`: the target has
a part of it, and is of no use.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
import struct
import sys
from typing import Any, NamedTuple

from sandbox.server.libc import call, syscall

NEW_MOUNTS = 0x00020000
NOSUID, NODEV, PRIVATE, RECURSIVE = 2, 4, 1 << 18, 0x4000
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same on each architecture
HERE, CLONE, RECURSIVE_TREE, FROM_DESCRIPTOR, DETACH = -100, 1, 0x8000, 4, 2
READ_ONLY = 1
ATTRIBUTES = struct.Struct("=QQQQ")  # struct mount_attr
OWNER_OF_NAMESPACE = 0xB701
LAYER, STACK, PART = "prorl-layer", "prorl-stack", ".prorl"  # names of our mounts: nobody inside can mount anything
OPTIONS = "userxattr,xino=on"
MOST_LAYERS = 16  # in one place: each is looked through for a name that is in none of those above it
LEAST_BYTES = 1 << 20
ESCAPED = re.compile(r"\\([0-7]{3})")  # in the kernel's table of mounts
MESSAGE_BYTES = 1 << 16
ENDING: list[int] = []  # processes that have answered


class CannotStack(Exception):
    """The text says why."""


class SealedPlace(NamedTuple):
    """A place that was sealed: what a target needs to have it too. `system`: of the layer that is full now."""

    path: str
    layers: list[int]  # mounts that are nowhere yet, the lowest first
    mode: int
    times: tuple[int, int]
    system: int
    left: int  # bytes that the next layer may have, with all others of the same system


class Namespace:
    """The mounts of a process, in which this one has all rights once it has entered them."""

    def __init__(self, pid: int, places: list[str]) -> None:
        self.covered, self.crowded = mounted(pid, places)
        self._mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
        self._owner = fcntl.ioctl(self._mounts, OWNER_OF_NAMESPACE)

    def enter(self) -> None:
        call("setns", self._owner, 0)
        self.come_back()

    def come_back(self) -> None:
        call("setns", self._mounts, 0)
        os.fchdir(self._root)
        os.chroot(".")
        os.chdir("/")

    def check(self, place: str) -> None:
        if place in self.crowded:
            raise CannotStack(f"something else is mounted below {place}")


def mounted(pid: int, places: list[str]) -> tuple[set[str], set[str]]:
    """The places that have layers, and those with mounts below them that are not of layers."""
    with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as table:
        found = [mount_of(line) for line in table]
    layers = {number for number, _, _, source in found if source == LAYER}
    covered = {point for _, _, point, source in found if source == STACK}
    points = [point for _, parent, point, _ in found if parent not in layers]
    crowded = {place for place in places if any(point.startswith(f"{place}/") for point in points)}
    return covered, crowded


def mount_of(line: str) -> tuple[str, str, str, str]:
    """A line of the kernel's table: the mount's number, that of the one it is on, its place, its source."""
    before, _, after = line.partition(" - ")
    number, parent, _, _, point = before.split(" ")[:5]
    return number, parent, ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), point), after.split(" ")[1]


def clone(path: str, more: int = 0) -> int:
    return syscall(OPEN_TREE, HERE, os.fsencode(path), CLONE | os.O_CLOEXEC | more)


def attach(tree: int, target: str) -> None:
    syscall(MOVE_MOUNT, tree, b"", HERE, os.fsencode(target), FROM_DESCRIPTOR)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    call("mount", source.encode(), os.fsencode(target), kind.encode() or None, flags, options.encode())


def set_read_only(place: str, *, on: bool) -> None:
    """Of this mount alone. Raises `OSError` where a file is open to be written."""
    wanted = ATTRIBUTES.pack(READ_ONLY if on else 0, 0 if on else READ_ONLY, 0, 0)
    syscall(MOUNT_SETATTR, HERE, os.fsencode(place), 0, wanted, ATTRIBUTES.size)


def own_copy() -> None:
    """Mounts of its own for this process, in which nothing that it does is seen."""
    call("unshare", NEW_MOUNTS)
    mount("none", "/", "", RECURSIVE | PRIVATE, "")


def peel(place: str, *, covered: bool) -> tuple[list[int], list[int]]:
    """Two sets of clones of a place's layers, the lowest first. In an own copy; this one is in the uppermost then."""
    if not covered:
        os.chdir(place)
        return [clone(".")], [clone(".")]
    call("umount2", os.fsencode(place), DETACH)
    os.chdir(place)
    names = [f"{PART}{number}" for number in range(sum(name.startswith(PART) for name in os.listdir(".")))]
    one, other = ([clone(name) for name in (*names, ".")] for _ in range(2))
    return one, other


def lay(places: list[SealedPlace]) -> list[tuple[str, int, int]]:
    """New layers, one file system for all places that shared one, and the overlays. In an own copy."""
    made = []
    for system in {place.system for place in places}:
        sharing = [place for place in places if place.system == system]
        at = sharing[0].path
        mount(LAYER, at, "tmpfs", NOSUID | NODEV, f"size={max(LEAST_BYTES, sharing[0].left)},mode=755")
        for number, place in enumerate(sharing):
            os.mkdir(f"{at}/{number}")
            os.chdir(f"{at}/{number}")
            made.append((place.path, *stacked(place)))
            os.chdir("/")
    return made


def stacked(place: SealedPlace) -> tuple[int, int]:
    """Clones of the layer in this directory, and of its overlay. Names are relative, for all have to fit in a page."""
    names = [f"{PART}{number}" for number in range(len(place.layers))]
    for name, tree in zip(names, place.layers, strict=True):
        os.mkdir(name)
        attach(tree, name)
    for own in ("u", "w", "m"):
        os.mkdir(own)
    os.chmod("u", place.mode)
    os.utime("u", ns=place.times)
    layer = clone(".", RECURSIVE_TREE)
    lowers = ":".join([*(f"{name}/u" for name in reversed(names[1:])), names[0]])
    mount(STACK, "m", "overlay", NOSUID | NODEV, f"lowerdir={lowers},upperdir=u,workdir=w,{OPTIONS}")
    return layer, clone("m")


def seal(pid: int, paths: list[str], peer: socket.socket) -> int:
    """Seals what a sandbox holds, and passes clones of the layers on; the bytes that were sealed."""
    inside = Namespace(pid, paths)
    inside.enter()
    full = [path for path in paths if os.listdir(path)]
    bare = {path: looks(os.stat(path)) for path in paths if path not in full}
    for path in full:
        inside.check(path)
    own_copy()
    changed: list[SealedPlace] = []
    passed: list[SealedPlace] = []
    used: dict[int, int] = {}
    for path in full:
        seen, room = os.stat(path), os.statvfs(path)
        mine, others = peel(path, covered=path in inside.covered)
        system = os.stat(".").st_dev
        place = SealedPlace(path, mine, *looks(seen), system, room.f_bavail * room.f_frsize)
        if path in inside.covered and not os.listdir("u"):
            others.pop()
        else:
            if len(mine) >= MOST_LAYERS:
                raise CannotStack(f"{path} has {MOST_LAYERS} layers already")
            changed.append(place)
            used[system] = (room.f_blocks - room.f_bfree) * room.f_frsize
        passed.append(place._replace(layers=others))
    os.chdir("/")
    made = lay(changed)
    inside.come_back()
    shut([place.path for place in changed])
    for path, layer, overlay in made:
        attach(layer, path)
        attach(overlay, path)
    for place in passed:
        socket.send_fds(peer, [json.dumps(place._replace(layers=[])).encode()], place.layers)
    peer.send(json.dumps(bare).encode())
    return sum(used.values())


def shut(paths: list[str]) -> None:
    """All of them, or none."""
    done: list[str] = []
    try:
        for path in paths:
            set_read_only(path, on=True)
            done.append(path)
    except OSError as error:
        for path in done:
            set_read_only(path, on=False)
        if error.errno == errno.EBUSY:
            raise CannotStack(f"a file in {paths[len(done)]} is open to be written") from error
        raise


def reopen(pid: int, paths: list[str]) -> int:
    """Undoes what a seal has left that failed, or was killed, between its steps: no place stays shut."""
    bare = uppermost(pid)
    inside = Namespace(pid, paths)
    inside.enter()
    for path in paths:
        if bare.get(path) == LAYER:  # which hides the files
            call("umount2", os.fsencode(path), DETACH)
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            set_read_only(path, on=False)
    return 0


def uppermost(pid: int) -> dict[str, str]:
    """By place, the source of the mount that is seen there."""
    with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as table:
        found = [mount_of(line) for line in table]
    below = {(parent, point) for _, parent, point, _ in found}
    return {point: source for number, _, point, source in found if (number, point) not in below}


def looks(seen: os.stat_result) -> tuple[int, tuple[int, int]]:
    """The mode of a directory, and its times."""
    return stat.S_IMODE(seen.st_mode), (seen.st_atime_ns, seen.st_mtime_ns)


def handed(peer: socket.socket) -> tuple[list[SealedPlace], dict[str, Any]]:
    """The places, and how those look that have nothing in them."""
    found: list[SealedPlace] = []
    while True:
        message, trees, _, _ = socket.recv_fds(peer, MESSAGE_BYTES, MOST_LAYERS + 1)
        if not message:
            raise CannotStack("")  # the other one says why
        said = json.loads(message)
        if isinstance(said, dict):
            return found, said
        path, _, mode, times, system, left = said
        found.append(SealedPlace(path, trees, mode, tuple(times), system, left))


def cover(pid: int, paths: list[str], peer: socket.socket, begun: list[bool]) -> None:
    """Covers the places of a fresh sandbox with what another one has passed. `begun` gets an entry before the first."""
    inside = Namespace(pid, paths)
    given, bare = handed(peer)
    inside.enter()
    for path in paths:
        if path not in bare:
            inside.check(path)
        elif os.listdir(path):
            raise CannotStack(f"{path} is empty in the sandbox that is copied, and not in its copy")
        else:
            os.chmod(path, bare[path][0])
            os.utime(path, ns=tuple(bare[path][1]))
    own_copy()
    made = lay(given)
    inside.come_back()
    begun.append(True)
    for path, layer, overlay in made:
        attach(layer, path)
        attach(overlay, path)


def told(work: Any) -> tuple[int, int]:
    """Runs it in a process of its own, which enters namespaces and ends; that one's pid, and where its words come."""
    words, said = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child:
        os.close(said)
        return child, words
    begun: list[bool] = []
    try:
        answer = {"sealed": work(begun)}
    except (CannotStack, OSError) as error:
        answer = {"error": str(error), "spoilt": bool(begun)}
    os.write(said, json.dumps(answer).encode())
    os._exit(0)


def heard(child: int, words: int) -> dict[str, Any]:
    with os.fdopen(words, "rb") as stream:
        text = stream.read()
    ENDING.append(child)  # its mounts take as long to go as all else
    return json.loads(text) if text else {"error": "a process of the mounter was killed", "spoilt": True}


def answered(request: dict[str, Any]) -> dict[str, Any]:
    giving, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = request["places"]
    sealing = told(lambda _: seal(request["source"], paths, giving))
    giving.close()
    covering = told(lambda begun: cover(request["target"], paths, taking, begun))
    taking.close()
    one, two = heard(*sealing), heard(*covering)
    if "error" in one:
        heard(*told(lambda _: reopen(request["source"], paths)))
        return {**one, "spoilt": "error" not in two or two["spoilt"]}
    return {**one, **two} if "error" in two else one


def become(user: int, group: int) -> None:
    """Becomes the user that sandboxes run as: nobody else owns their namespaces, and what is made in them."""
    if os.geteuid() != user:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def main() -> None:
    call("unshare", 0)  # loads what calls need, once for all processes of this one, and while it may read it
    become(*map(int, sys.argv[1:]))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answered(json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()
        while ENDING:
            os.waitpid(ENDING.pop(), 0)


if __name__ == "__main__":
    main()
