"""The form of an archive: a head, and compressed records, each a line of JSON with the bytes that it announces.

Whoever reads one takes it for hostile: nothing in it is believed before it is looked at, and what it unfolds to is
bounded. The digest tells an archive that was damaged, not one that was made to deceive.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

try:  # all of hashlib loads OpenSSL, which takes as long as all else here
    from _blake2 import blake2b as blake2b  # noqa: PLC0414 - for others of here too
except ImportError:
    from hashlib import blake2b as blake2b  # noqa: PLC0414

MAGIC = b"prorl-checkpoint"
SCHEMA = 1
HEAD = struct.Struct("!16sH20s")  # magic, schema, digest of all that follows
RECORD = struct.Struct("!I")
RECORD_BYTES = 1 << 20
PIECE = 64 << 10
LARGEST = (1 << 62) - 1  # number of bytes, or of nanoseconds: a time in the year 2116


class ArchiveTooLarge(Exception):
    """More has changed than was asked for."""


class Unrestorable(Exception):
    """The archive cannot be applied here; the text says why."""


class ArchiveWriter:
    """Gathers records. Raises `ArchiveTooLarge` when their bytes, before compression, are more than `limit`."""

    def __init__(self, limit: int) -> None:
        self._zip = zlib.compressobj(1)
        self._parts: list[bytes] = []
        self._left = limit
        self.bytes_added = 0

    def add(self, record: dict[str, Any], data: bytes = b"") -> None:
        """Paths are text in which bytes that are none have the form that Python gives them."""
        head = json.dumps(record, sort_keys=True).encode()
        if len(head) > RECORD_BYTES:
            raise ArchiveTooLarge
        self.write(RECORD.pack(len(head)) + head)
        self.write(data)

    def require(self, count: int) -> None:
        if count > self._left:
            raise ArchiveTooLarge

    def write(self, data: bytes) -> None:
        self.require(len(data))
        self._left -= len(data)
        self.bytes_added += len(data)
        self._parts.append(self._zip.compress(data))

    def finish(self) -> tuple[bytes, str]:
        """The archive and its digest."""
        self._parts.append(self._zip.flush())
        digest = blake2b(digest_size=20)
        for part in self._parts:
            digest.update(part)
        return b"".join([HEAD.pack(MAGIC, SCHEMA, digest.digest()), *self._parts]), digest.hexdigest()


class ArchiveReader:
    """Gives records and their bytes in turn, of at most `limit` bytes. Raises `Unrestorable`."""

    def __init__(self, data: bytes, limit: int) -> None:
        if len(data) < HEAD.size or not data.startswith(MAGIC):
            raise Unrestorable("this is no checkpoint")
        _, schema, digest = HEAD.unpack_from(data)
        if schema != SCHEMA:
            raise Unrestorable(f"the checkpoint has schema {schema}; this sandbox knows {SCHEMA}")
        self._data = memoryview(data)[HEAD.size :]
        found = blake2b(self._data, digest_size=20)
        if found.digest() != digest:
            raise Unrestorable("the checkpoint is damaged: its digest is another one")
        self.digest = found.hexdigest()
        self._zip = zlib.decompressobj()
        self._at = 0
        self._open = bytearray()
        self._left = limit

    def record(self) -> dict[str, Any]:
        size = RECORD.unpack(self.read(RECORD.size))[0]
        if size > RECORD_BYTES:
            raise Unrestorable("a record of the checkpoint is too long")
        try:
            record = json.loads(self.read(size))
        except (ValueError, RecursionError) as error:
            raise Unrestorable(f"a record of the checkpoint cannot be read: {error}") from error
        if not isinstance(record, dict):
            raise Unrestorable("a record of the checkpoint is none")
        return record

    def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._open) < size:
            self._inflate()
        data = bytes(self._open[:size])
        del self._open[:size]
        return data

    def _inflate(self) -> None:
        piece = self._zip.unconsumed_tail
        if not piece:
            piece = bytes(self._data[self._at : self._at + PIECE])
            self._at += len(piece)
        try:
            more = self._zip.decompress(piece, PIECE)
        except zlib.error as error:
            raise Unrestorable(f"the checkpoint cannot be unpacked: {error}") from error
        if not more and not piece:
            raise Unrestorable("the checkpoint ends too early")
        self._left -= len(more)
        if self._left < 0:
            raise Unrestorable("the checkpoint unfolds to more than this sandbox may hold")
        self._open += more


def field(record: dict[str, Any], name: str, kind: type) -> Any:
    """A value of a record, of exactly this type."""
    value = record.get(name)
    if type(value) is not kind:
        raise Unrestorable(f"a record of the checkpoint has no valid {name}")
    return value


def count(record: dict[str, Any], name: str, most: int) -> int:
    value = field(record, name, int)
    if not 0 <= value <= most:
        raise Unrestorable(f"a record of the checkpoint has no valid {name}")
    return int(value)
