"""Sandboxes of which one is saved and the other becomes it, and what can be seen of their files."""

import json
from typing import Any

from sandbox.protocol import Sandbox
from tests.sandbox.conftest import Create

PLACES = ("/workspace", "/home/agent", "/tmp", "/var/tmp", "/run", "/dev/shm")
LOOK = r"""
import hashlib, json, os, stat, sys

def look(path, found, inodes):
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    told = [kind, stat.S_IMODE(s.st_mode), s.st_mtime_ns]
    if kind == stat.S_IFREG:
        if not s.st_mode & 0o400: os.chmod(path, 0o600)
        with open(path, "rb") as stream:
            told += [s.st_size, s.st_blocks * 512 < s.st_size, hashlib.sha256(stream.read()).hexdigest()]
        if not s.st_mode & 0o400: os.chmod(path, stat.S_IMODE(s.st_mode))
    if kind == stat.S_IFLNK:
        told.append(os.fsencode(os.readlink(path)).hex())
    if kind != stat.S_IFDIR:
        told.append(inodes.setdefault(s.st_ino, os.fsencode(path).hex()))
    found[os.fsencode(path).hex()] = told
    if kind == stat.S_IFDIR:
        if s.st_mode & 0o500 != 0o500: os.chmod(path, 0o700)
        for name in sorted(os.listdir(path)):
            look(os.path.join(path, name), found, inodes)
        if s.st_mode & 0o500 != 0o500: os.chmod(path, stat.S_IMODE(s.st_mode))

found = {}
for place in sys.argv[1:]:
    look(place, found, {})
print(json.dumps(found))
"""


async def python(box: Sandbox, code: str, *arguments: str, stdin: bytes = b"") -> str:
    done = await box.run(["python3", "-I", "-c", code, *arguments], stdin=stdin)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode()


async def tree(box: Sandbox, *places: str) -> dict[str, Any]:
    """Each path with its kind, mode, time, content and the first of its names."""
    told = json.loads(await python(box, LOOK, *(places or PLACES)))
    return {str(bytes.fromhex(path)): seen for path, seen in told.items()}


async def pair(create: Create, *, prepare: str = "", **options: Any) -> tuple[Sandbox, Sandbox]:
    """Two sandboxes in which the same was prepared, each marked."""
    made = []
    for owner in ("job:1", "job:2"):
        box = await create(owner, **options)
        done = await box.run(["sh", "-ec", f"{prepare or ':'}\n touch -d '2026-01-01' {' '.join(PLACES)}"])
        assert done.exit_code == 0, done.stderr
        assert list(await box.mark()) == []
        made.append(box)
    return made[0], made[1]


async def carry_over(one: Sandbox, other: Sandbox) -> None:
    """Saves all of the one and makes the other the same."""
    saved = await one.save()
    assert saved.lost == (), saved.lost
    assert saved.data is not None
    await other.restore(saved.data)
