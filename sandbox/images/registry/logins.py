"""Logins for registries, from a file in the form of docker's config.json."""

import base64
import binascii
from pathlib import Path
from typing import Final

import msgspec

from sandbox.errors import SandboxUnavailable
from sandbox.images.registry.reference import HUB, HUB_HOST

HUB_NAMES: Final = ("https://index.docker.io/v1/", "index.docker.io", HUB)


class _Entry(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return "_Entry"


class _Config(msgspec.Struct, frozen=True):
    auths: dict[str, _Entry] = {}


class Logins:
    """User and password of each registry; a registry gets its own ones alone."""

    def __init__(self, entries: dict[str, tuple[str, str]] | None = None) -> None:
        self._entries = entries or {}

    def __repr__(self) -> str:
        return f"Logins({', '.join(sorted(self._entries))})"

    def of(self, host: str) -> tuple[str, str] | None:
        """`host` with its port."""
        return self._entries.get(host)


def logins_from(path: Path | None) -> Logins:
    """Reads the file. Raises `SandboxUnavailable`, which names no secret."""
    if path is None:
        return Logins()
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
        return Logins({_host(name): _login(entry) for name, entry in config.auths.items() if _login(entry)[0]})
    except OSError as error:
        raise SandboxUnavailable(f"the login file {path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError):
        raise SandboxUnavailable(
            f"the login file {path} is not in the form of docker's config.json: "
            '{"auths": {"HOST": {"auth": "base64 of USER:PASSWORD"}}}'
        ) from None


def _host(name: str) -> str:
    if name in HUB_NAMES:
        return HUB_HOST
    return name.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _login(entry: _Entry) -> tuple[str, str]:
    if not entry.auth:
        return entry.username, entry.password
    user, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
    return user, password
