"""Attacks through the kernel's key retention service."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from sandbox.attack.inside.tools import Contained, reaches, system_call

PROCESS, SESSION, USER = -2, -3, -4
GET_ID, JOIN, REVOKE, LINK, SEARCH, READ = 0, 1, 3, 8, 10, 11


def read_key(keyring: int, name: str) -> bytes:
    serial = system_call("keyctl", SEARCH, keyring, b"user", name.encode(), 0)
    buffer = ctypes.create_string_buffer(256)
    size = system_call("keyctl", READ, serial, buffer, len(buffer))
    return buffer.raw[:size]


def host_key_read(facts: dict[str, Any]) -> str:
    return f"read the worker's key: {read_key(SESSION, facts['read_key'])!r}"


def host_key_revoke(facts: dict[str, Any]) -> str:
    serial = system_call("keyctl", SEARCH, SESSION, b"user", facts["revoke_key"].encode(), 0)
    system_call("keyctl", REVOKE, serial)
    return "revoked the worker's key"


def leave_note(facts: dict[str, Any]) -> str:
    """In another sandbox, before `key_note`."""
    system_call("add_key", b"user", facts["note"].encode(), b"note", 4, USER)
    return "left a key for other sandboxes"


def key_note(facts: dict[str, Any]) -> str:
    """The keyring of the user grants that user everything, in each user namespace."""
    with open("/proc/keys") as stream:
        rows = [line.split() for line in stream]
    for row in rows:
        if row[7] == "keyring" and row[8].startswith("_uid."):
            with contextlib.suppress(OSError):
                system_call("keyctl", LINK, int(row[0], 16), PROCESS)
                return f"read another sandbox's key: {read_key(PROCESS, facts['note'])!r}"
    raise Contained("no key of another sandbox is in sight")


def key_add() -> str:
    return reaches("add_key", b"user", b"attack", b"x", 1, PROCESS)


def key_request() -> str:
    return reaches("request_key", b"user", b"attack", b"callout", 0)


def keyring_join() -> str:
    return reaches("keyctl", JOIN, None)
