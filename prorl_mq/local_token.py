"""The token of a service on loopback: in the state directory, for its owner's eyes alone. Beside it, its address.

Commands and clients of the same user find both there; other users of the machine do not.
"""

import contextlib
import ipaddress
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prorl_mq.errors import ConfigurationError
from prorl_mq.private_files import private

FILE: Final = "token"
ADDRESS: Final = "address"
URL: Final = "http://127.0.0.1:8080"  # where no service has left another one
STATE: Final = "PRORL_STATE"
TOKEN: Final = "PRORL_TOKEN"  # noqa: S105 - the name of a variable


def made(state_dir: Path) -> str:
    """The token that lies there, made where there is none. Raises `ConfigurationError` where others know it, too."""
    file = state_dir / FILE
    try:
        if (there := _kept(file)) is not None:
            return there
        state_dir.mkdir(parents=True, exist_ok=True)  # as `up` makes it: sandboxes' users pass it
        new = file.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(private(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as out:
            out.write(secrets.token_urlsafe(32))
        try:
            with contextlib.suppress(FileExistsError):  # another process was faster: its token is everybody's
                os.link(new, file)
        finally:
            new.unlink()
        found = _kept(file)
    except OSError as error:
        raise ConfigurationError(
            f"the token {file} cannot be kept: {error.strerror}; name another directory with --state-dir, "
            "or start with --tokens FILE"
        ) from None
    if found is None:
        raise ConfigurationError(f"the token {file} was removed while this process started: start it again")
    return found


@contextlib.contextmanager
def left(state_dir: Path, *, wanted: bool) -> Iterator[str]:
    """A new token while the service of a directory runs, for the holder of its lock; empty if none is wanted."""
    file = state_dir / FILE
    file.unlink(missing_ok=True)
    try:
        yield made(state_dir) if wanted else ""
    finally:
        file.unlink(missing_ok=True)


def found(url: str, state_dir: Path | None = None) -> str | None:
    """The token for an address of this machine, none for any other: of the environment, else of the state directory."""
    if not is_loopback(urlsplit(url).hostname or ""):
        return None
    if given := os.environ.get(TOKEN):
        return given
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (place(state_dir)).read_text("ascii").strip() or None
    return None


def place(state_dir: Path | None = None) -> Path:
    """The file where a client looks."""
    return (state_dir or Path(os.environ.get(STATE) or ".state")) / FILE


def address(state_dir: Path | None = None) -> str:
    """The API of the service of a state directory, which `up` leaves there while it runs. A file that another user has
    made, or may write, is none: tokens are sent there.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError), place(state_dir).with_name(ADDRESS).open("rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o022:
            return file.read(4096).decode("ascii").strip() or URL
    return URL


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _kept(file: Path) -> str | None:
    """None where there is no file. Raises `ConfigurationError` for one that another user made, or may read or write."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as opened:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise ConfigurationError(
                f"the token {file} is not this user's alone: remove it, and the next start makes a new one"
            )
        text = opened.read(4096).decode("ascii", "replace").strip()
    if len(text) < 8 or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(f"the token {file} is none: remove it, and the next start makes a new one")
    return text
