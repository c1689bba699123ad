"""API keys of backends, from a file on each machine that calls them. They never enter Redis.

A tenant may add a backend wherever the operator allows it: were a key sent by address alone, a server of the tenant's
own at such an address would be handed it. So callers send keys to the operator's backends alone.
"""

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from prorl_mq.errors import ConfigurationError
from prorl_mq.rules import reach as patterns
from prorl_mq.rules.reach import Reach
from prorl_mq.schema import addresses, forms
from prorl_mq.schema.strict import Misfit, convert

VARIABLE: Final = "PRORL_BACKEND_KEYS"
HIDDEN: Final = b"[key]"
LEAST_CHARS: Final = 8  # of a key: `forms.BEARER`


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[keys]]`: patterns of backends as in the tokens file, and the bearer token that they want."""

    backends: Annotated[list[str], Meta(min_length=1)]
    key: Annotated[str, Meta(pattern=forms.BEARER)]

    def __post_init__(self) -> None:
        for each in self.backends:
            patterns.check(each)

    def __repr__(self) -> str:
        return f"KeyEntry(backends={self.backends})"


class _KeysFile(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[KeyEntry]


class BackendKeys:
    """The key of each backend; the first entry that matches its address decides."""

    def __init__(self, entries: Sequence[KeyEntry] = (), path: Path | None = None) -> None:
        self._entries = entries
        self._path = path
        self._found: dict[str, str | None] = {}  # by address

    def of(self, address: str) -> str | None:
        """The key of a backend of the operator's."""
        if not self._entries:
            return None
        if address not in self._found:
            self._found[address] = self._match(address)
        return self._found[address]

    def hide(self, address: str, body: bytes) -> bytes:
        """An answer without the key that its backend was sent: servers repeat it in their errors."""
        key = self.of(address)
        return body.replace(key.encode(), HIDDEN) if key else body

    def quoted(self, address: str, words: str) -> str:
        """Words about an answer that cannot be read: they may quote its beginning, and with that a part of the key."""
        key = self.of(address)
        return "it begins with the API key" if key is not None and key[:LEAST_CHARS] in words else words

    def refused(self, address: str, reach: Reach | None) -> str:
        """The fault and what to do, for a backend that answers 401. With a reach it is a tenant's."""
        if reach is not None:
            return "it wants an API key, and a tenant's backend gets none: ask the operator to add it"
        if self.of(address) is not None:
            return f"it refuses the API key that {self._path} has for it: correct it there and restart"
        place = self._path or f"a file that {VARIABLE} names"
        return f"it wants an API key, and there is none for it: put one into {place} and restart"

    def _match(self, address: str) -> str | None:
        try:
            known = addresses.parse(address)
        except ValueError:
            return None
        found = (entry.key for entry in self._entries if any(patterns.covers(each, known) for each in entry.backends))
        return next(found, None)


def keys_from(environ: Mapping[str, str]) -> BackendKeys:
    """The keys of the file that the environment names; without one, none. Raises `ConfigurationError`, without keys."""
    if not (named := environ.get(VARIABLE)):
        return BackendKeys()
    path = Path(named).absolute()
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigurationError(f"{VARIABLE}: {path} can be read by others: chmod 600 it")
            entries = convert(tomllib.loads(file.read().decode()), _KeysFile).keys
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from None
    except Misfit as error:
        raise ConfigurationError(f"{VARIABLE}: {path}: {error}") from None
    except ValueError:  # its text may have a part of a key
        raise ConfigurationError(f"{VARIABLE}: {path} is no TOML of [[keys]] with backends and key") from None
    return BackendKeys(entries, path)
