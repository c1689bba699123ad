"""The operator's settings for images: the file that PRORL_IMAGES names, and the size of the cache."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from sandbox.errors import SandboxUnavailable
from sandbox.images.registry.reference import check_mirror

LIMIT_VARIABLE: Final = "PRORL_IMAGES_BYTES"
FILE_VARIABLE: Final = "PRORL_IMAGES"
LIMIT_BYTES: Final = 50 << 30


class ImageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`storage`: where layers are kept as they came, which nodes may share. `login`: in the form of docker's
    config.json. `mirrors`: host, or host and first parts of a repository → URLs to try before it.
    """

    storage: str = ""
    login: str = ""
    mirrors: dict[str, Annotated[list[str], Meta(min_length=1)]] = {}


def image_settings(environment: Mapping[str, str]) -> ImageSettings:
    """Raises `SandboxUnavailable` with the fault in the file."""
    name = environment.get(FILE_VARIABLE)
    if not name:
        return ImageSettings()
    try:
        found = msgspec.convert(tomllib.loads(Path(name).read_text(encoding="utf-8")), ImageSettings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SandboxUnavailable(f"{FILE_VARIABLE} names {name}, which cannot be used: {error}") from error
    for mirror in (each for mirrors in found.mirrors.values() for each in mirrors):
        if why := check_mirror(mirror):
            raise SandboxUnavailable(f"{FILE_VARIABLE} names {name}, whose mirror {why}")
    return found


def limit_bytes(environment: Mapping[str, str]) -> int:
    """The limit that the user has set, or the default. Raises `SandboxUnavailable`."""
    text = environment.get(LIMIT_VARIABLE) or str(LIMIT_BYTES)
    if not text.isdecimal():
        raise SandboxUnavailable(f"{LIMIT_VARIABLE}={text!r} is no number of bytes")
    return int(text)
