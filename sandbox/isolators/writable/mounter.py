"""Lays a layer of changes over directories of an image, in namespaces of its own, and becomes the isolator there.

PLAN [COMMAND...]: PLAN is the JSON of `ways.OverlayPlan`; without a command it tries what an overlay must be able to.
It is a program by itself, because the kernel lets a user without rights mount an overlay in a user namespace of his
own, and what is mounted there can be bound into the sandbox below. The namespaces end with their last process, and with
them all that was mounted there.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any

from sandbox.server.libc import DUMPABLE, call, prctl, syscall

NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
NOSUID, NODEV, BIND, RECURSIVE, SLAVE = 2, 4, 0x1000, 0x4000, 0x80000
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same on each architecture
HERE = -100  # AT_FDCWD
CLONE = 1  # of open_tree
FROM_DESCRIPTOR = 4  # of move_mount
EMPTY_PATH, IDMAPPED = 0x1000, 0x00100000
ATTRIBUTES = struct.Struct("=QQQQ")  # struct mount_attr
# Attributes of the kernel's own namespace are root's; without `userxattr` no directory of the image could be removed.
# With `xino` all files are of one device, as programs expect of one directory.
OPTIONS = "userxattr,xino=on"


def clone(path: str) -> int:
    """A mount of a directory that is nowhere yet."""
    return syscall(OPEN_TREE, HERE, os.fsencode(path), CLONE | os.O_CLOEXEC)


def attach(tree: int, target: str) -> None:
    os.mkdir(target)
    syscall(MOVE_MOUNT, tree, b"", HERE, os.fsencode(target), FROM_DESCRIPTOR)
    os.close(tree)


def cloned_for(path: str, user: list[int]) -> int:
    """The same; in this mount what root owns belongs to `user` (uid, gid). Only root may do that."""
    tree = clone(path)
    waiting, go = os.pipe()
    made, making = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.close(made)
        call("unshare", NEW_USER)
        os.write(making, b".")
        os.read(waiting, 1)
        os._exit(0)
    os.close(making)
    try:
        os.read(made, 1)
        for name, number in zip(("uid_map", "gid_map"), user, strict=True):
            write(f"/proc/{child}/{name}", f"0 {number} 1")
        owner = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        syscall(MOUNT_SETATTR, tree, b"", EMPTY_PATH, ATTRIBUTES.pack(IDMAPPED, 0, 0, owner), ATTRIBUTES.size)
        os.close(owner)
    finally:
        for descriptor in (waiting, go, made):
            os.close(descriptor)
        os.waitpid(child, 0)
    return tree


def become(user: list[int]) -> None:
    """Becomes the user that sandboxes run as, unless this process is that already."""
    prctl(DUMPABLE, 1)  # what this imports could not be read any more after the next lines
    if os.geteuid() != user[0]:
        os.setgroups([])
        os.setresgid(user[1], user[1], user[1])
        os.setresuid(user[0], user[0], user[0])
        prctl(DUMPABLE, 1)  # else its own files in /proc are root's


def enter_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    call("unshare", NEW_USER | NEW_MOUNTS)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {user} 1")
    write("/proc/self/gid_map", f"{group} {group} 1")
    mount("none", "/", "", RECURSIVE | SLAVE, "")


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    call("mount", os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, options.encode())


def write(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)


def lay(name: str, lowers: list[int], options: str) -> None:
    """Mounts at NAME/m what `lowers` hold, the uppermost first, under a layer of changes that lies in NAME/u."""
    os.mkdir(name)
    os.chdir(name)
    for number, tree in enumerate(lowers):
        attach(tree, f"l{number}")
    for own in ("u", "w", "m"):
        os.mkdir(own)
    found = os.stat("l0")
    os.chmod("u", found.st_mode & 0o7777)
    os.utime("u", ns=(found.st_atime_ns, found.st_mtime_ns))
    layers = ":".join(f"l{number}" for number in range(len(lowers)))
    mount("overlay", "m", "overlay", NOSUID | NODEV, f"lowerdir={layers},upperdir=u,workdir=w,{options}")
    os.chdir("..")


def try_it(name: str) -> None:
    """Removes a directory of the image, makes another in its place, and writes: the probe's lowest layer has it."""
    os.chdir(f"{name}/m")
    os.unlink("probe/file")
    os.rmdir("probe")
    os.mkdir("probe")
    write("probe/other", "x")
    if os.listdir("probe") != ["other"]:
        raise OSError(5, "a removed directory comes back", "probe")


def return_to(directory: str) -> None:
    """The isolator may be given relative paths; but sandboxes' users may be shut out of where root works."""
    try:
        os.chdir(directory)
    except OSError:
        os.chdir("/")


def main(arguments: list[str]) -> None:
    plan: dict[str, Any] = json.loads(arguments[0])
    user, places, began = plan["user"], plan["places"], os.getcwd()
    given = [[cloned_for(lower, user) for lower in place["lowers"]] if place["of_root"] else [] for place in places]
    become(user)
    enter_namespaces()
    if plan["disk"]:
        mount(plan["disk"], plan["base"], "", BIND, "")
    else:
        mount("tmpfs", plan["base"], "tmpfs", NOSUID | NODEV, f"size={plan['size']},mode=755")
    os.chdir(plan["base"])
    for number, (place, trees) in enumerate(zip(places, given, strict=True)):
        options = f"{OPTIONS},volatile" if plan["disk"] else OPTIONS  # on disk each change would wait for it
        lay(str(number), trees or [clone(lower) for lower in place["lowers"]], options)
    if not arguments[1:]:
        try_it("0")
        return
    return_to(began)
    os.execv(arguments[1], arguments[1:])  # noqa: S606


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"the directories of the image cannot be overlaid: {error.filename}: {error.strerror}")
