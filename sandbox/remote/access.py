"""Access to a sandbox server: its address, and the file with the token for it."""

import logging
import stat
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from sandbox.errors import NotNow, SandboxUnavailable

SERVER: Final = "PRORL_SANDBOX_SERVER"
TOKEN_FILE: Final = "PRORL_SANDBOX_TOKEN_FILE"  # noqa: S105 - the name of a variable
LATER_S: Final = 10.0
log = logging.getLogger(__name__)


class ServerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The server of this process's remote sandboxes."""

    url: str  # without a slash at its end
    token_file: Path

    def token(self) -> str:
        """Read at each request, so that it can be changed while jobs run. Raises `NotNow`."""
        try:
            with self.token_file.open(encoding="ascii") as file:
                if stat.S_IMODE(self.token_file.stat().st_mode) & 0o077:
                    raise NotNow(f"{TOKEN_FILE}: {self.token_file} can be read by others: chmod 600 it", LATER_S)
                text = file.read().strip()
        except (OSError, UnicodeError) as error:
            raise NotNow(f"{TOKEN_FILE}: {self.token_file} cannot be read: {error}", LATER_S) from None
        if not text.isprintable() or not text or " " in text:
            raise NotNow(f"{TOKEN_FILE}: {self.token_file} must hold one token and nothing else", LATER_S)
        return text


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def access_from(environ: Mapping[str, str]) -> ServerAccess:
    """The access that the environment names. Raises `SandboxUnavailable` where it names no server, or no token."""
    url, file = environ.get(SERVER, ""), environ.get(TOKEN_FILE, "")
    if not url or not file:
        missing = SERVER if not url else TOKEN_FILE
        raise SandboxUnavailable(
            f"sandboxes of kind 'remote' need {SERVER} (https://HOST:PORT of a sandbox server) and {TOKEN_FILE} (a "
            f"file with the token for it): {missing} is not set"
        )
    parts = urlsplit("")
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname)
        fits = fits and "@" not in parts.netloc and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        fits = False
    if not fits:
        shown = url.rpartition("@")[2]  # before it may be a password
        raise SandboxUnavailable(
            f"{SERVER}: {shown!r} is not https://HOST:PORT or http://HOST:PORT of a sandbox server"
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        log.warning("%s: %s is not encrypted: whoever sees its network can read the token; use https://", SERVER, url)
    return ServerAccess(url=url.rstrip("/"), token_file=Path(file))
