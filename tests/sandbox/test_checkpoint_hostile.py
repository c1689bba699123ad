"""Archives that an agent could have written: none of them reaches beyond the writable places, or the limits."""

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import CannotRestore
from sandbox.server.checkpoint.archive import HEAD, MAGIC, RECORD, SCHEMA, ArchiveReader, ArchiveWriter, Unrestorable
from sandbox.server.checkpoint.unpack import FileUnpacker
from tests.sandbox.checkpoints import pair
from tests.sandbox.conftest import ISOLATED, Create

FILE = {"t": "file", "mode": 0o644, "time": 0, "size": 5, "parts": [[0, 5]]}
LINK = {"t": "symlink", "mode": 0o777, "time": 0}
DIRECTORY = {"t": "dir", "mode": 0o755, "time": 0}
FIFO = {"t": "fifo", "mode": 0o644, "time": 0}
Records = list[tuple[dict[str, Any], bytes]]


def archive(records: Records) -> bytes:
    writer = ArchiveWriter(1 << 30)
    for record, data in records:
        writer.add(record, data)
    return writer.finish()[0]


def sealed(body: bytes) -> bytes:
    """An archive with this compressed body, and the digest that fits it."""
    return HEAD.pack(MAGIC, SCHEMA, hashlib.blake2b(body, digest_size=20).digest()) + body


def file(path: str, **other: Any) -> tuple[dict[str, Any], bytes]:
    return {**FILE, "at": [0, path], **other}, b"owned"


def link(path: str, to: str) -> tuple[dict[str, Any], bytes]:
    return {**LINK, "at": [0, path], "to": to}, b""


OUT: list[Records] = [
    [file("../outside")],
    [file("a/../../outside")],
    [file("/etc/outside")],
    [file("./a")],
    [file("a//b")],
    [file("a\0b")],
    [file("\ud800")],
    [file("a" * 5000)],
    [file("outside", at=[1, "x"])],
    [file("outside", at=[-1, "x"])],
    [file("outside", at=[True, "x"])],
    [file("outside", at="0/x")],
    [file("")],
    [link("way", ".."), file("way/outside")],
    [link("way", "/"), file("way/outside")],
    [link("way", ".."), ({**DIRECTORY, "at": [0, "way/outside"]}, b"")],
    [link("way", ".."), ({"t": "gone", "at": [0, "way/beside"]}, b"")],
    [link("way", "../beside"), ({"t": "link", "at": [0, "here"], "to": [0, "way/secret"]}, b"")],
    [({"t": "link", "at": [0, "here"], "to": [0, "../beside/secret"]}, b"")],
    [({"t": "device", "at": [0, "null"], "mode": 0o666, "time": 0, "major": 1, "minor": 3}, b"")],
    [({"t": "gone", "at": [0, ""]}, b"")],
    [link("", "/")],
    [file("a", parts=[[3, 5]])],
    [file("a", parts=[[-1, 5]])],
    [file("a", parts=[[0, 5.0]])],
    [file("a", parts=[[0]])],
    [file("a", parts=7)],
    [file("a", size=-1)],
    [file("a", size=1 << 62)],
    [file("a", mode=-1)],
    [file("a", mode=1 << 20)],
    [file("a", time=1 << 63)],
    [file("a", time="0")],
    [({"t": "file"}, b"")],
    [({}, b"")],
]


@pytest.mark.parametrize("records", OUT, ids=range(len(OUT)))
def test_nothing_but_the_places_is_reached(records: Records, tmp_path: Path) -> None:
    place, beside = tmp_path / "place", tmp_path / "beside"
    place.mkdir()
    beside.mkdir()
    (beside / "secret").write_text("secret")
    before = seen(tmp_path)
    reader = ArchiveReader(archive(records), 1 << 30)
    unpacker = FileUnpacker((str(place),), reader)
    for _ in records[:-1]:
        unpacker.apply(reader.record())
    with pytest.raises((Unrestorable, OSError)):
        unpacker.apply(reader.record())
    unpacker.close()
    assert seen(tmp_path) == before
    if (place / "here").exists():
        pytest.fail("a link to what is beside")


def seen(root: Path) -> dict[str, Any]:
    """All that is not in the place."""
    paths = [path for path in root.rglob("*") if root / "place" not in path.parents]
    return {str(path): (path.lstat().st_mode, path.is_file() and path.read_bytes()) for path in paths}


def test_another_file_system_within_a_place_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the directory is that a sandbox shares with its host. Here all of the place is one, which needs no mount."""
    reader = ArchiveReader(archive([({**DIRECTORY, "at": [0, "a"]}, b""), file("a/x")]), 1 << 30)
    unpacker = FileUnpacker((str(tmp_path),), reader)
    unpacker.apply(reader.record())
    monkeypatch.setattr(unpacker, "_devices", [-1])
    with pytest.raises(Unrestorable, match="leads to another file system"):
        unpacker.apply(reader.record())
    unpacker.close()
    assert list((tmp_path / "a").iterdir()) == []


BROKEN: list[tuple[Callable[[], bytes], str]] = [
    (lambda: b"", "this is no checkpoint"),
    (lambda: MAGIC, "this is no checkpoint"),
    (lambda: sealed(b"no zlib"), "cannot be unpacked"),
    (lambda: sealed(zlib.compress(b"")), "ends too early"),
    (lambda: sealed(zlib.compress(RECORD.pack(1 << 30))), "a record of the checkpoint is too long"),
    (lambda: sealed(zlib.compress(RECORD.pack(9) + b"{}")), "ends too early"),
    (lambda: sealed(zlib.compress(RECORD.pack(2) + b"[]")), "a record of the checkpoint is none"),
    (lambda: sealed(zlib.compress(RECORD.pack(3) + b"\xff{}")), "cannot be read"),
    (lambda: sealed(zlib.compress(RECORD.pack(100000) + b"[" * 100000)), "cannot be read"),
]


@pytest.mark.parametrize(("made", "why"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_archive_is_refused(made: Callable[[], bytes], why: str) -> None:
    with pytest.raises(Unrestorable, match=why):
        ArchiveReader(made(), 1 << 30).record()


def test_a_bomb_is_unfolded_no_further_than_the_limit() -> None:
    bomb = zlib.compressobj(9)
    body = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(64)) + bomb.flush()
    assert len(body) < 100_000
    reader = ArchiveReader(sealed(body), 1 << 20)
    for _ in range(1048):
        assert not any(reader.read(1000))
    with pytest.raises(Unrestorable, match="unfolds to more than this sandbox may hold"):
        reader.read(1000)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
@pytest.mark.parametrize("what", ["way out", "bomb", "endless", "state"])
async def test_a_sandbox_refuses_it(create: Create, what: str) -> None:
    one, other = await pair(create)
    await one.bash("echo >file")
    data = (await one.save()).data
    assert data is not None
    reader = ArchiveReader(data, 1 << 30)
    begin = reader.record()
    place = begin["places"].index("/workspace")
    records: Records = [(begin, b"")]
    if what == "way out":
        records += [link("way", "/opt/prorl"), file("way/outside")]
        for record, _ in records[1:]:
            record["at"][0] = place
    if what == "bomb":
        size = 3 << 30
        records.append(({**FILE, "at": [place, "big"], "size": size, "parts": [[0, size]]}, b""))
        records += [({"t": "gone", "at": [place, "none"], "more": "x" * 900_000}, b"")] * 64
    if what == "endless":
        records += [({"t": "gone", "at": [place, f"{number}"]}, b"") for number in range(1000)]
    if what == "state":
        states = {"editor": b"[[1]]", "shell": json.dumps({"set": 7}).encode(), "kernel": b""}
        records += [({"t": name, "size": len(state)}, state) for name, state in states.items()]
        records.append(({"t": "end"}, b""))
    with pytest.raises(CannotRestore):
        await other.restore(archive(records))
