"""The variables that an image of a registry brings along: ENV of its configuration."""

import re
from pathlib import Path
from typing import Final

import msgspec

from sandbox.errors import ImageUnavailable
from sandbox.images.registry.manifest import ImageConfig

CONFIGURATION: Final = "config.json"  # beside the directory `image` of an entry of the cache
OURS: Final = {"HOME", "USER", "LOGNAME", "SHELL", "TERM"}  # of the one user that a sandbox has
MOST_BYTES: Final = 256 << 10  # all of them go with every command
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment_of(image: Path) -> dict[str, str]:
    """Of an image in the cache of any node; nothing for other directories. Blocks."""
    entry = image.parent
    if image.name != "image" or not (entry / "layers").is_file():
        return {}
    try:
        return variables((entry / CONFIGURATION).read_bytes(), str(image))
    except FileNotFoundError:
        return {}


def variables(data: bytes, about: str) -> dict[str, str]:
    """ENV of a configuration. Raises `ImageUnavailable` for one that no command could be started with."""
    try:
        config = msgspec.json.decode(data, type=ImageConfig).config
    except msgspec.MsgspecError as error:
        raise ImageUnavailable(f"{about} has a configuration that cannot be read: {error}", final=True) from error
    given = (config.env if config is not None else None) or []
    if sum(map(len, given)) > MOST_BYTES:
        raise ImageUnavailable(f"{about} sets more than {MOST_BYTES} bytes of variables", final=True)
    pairs = [pair.partition("=") for pair in given]
    return {name: value for name, _, value in pairs if _NAME.fullmatch(name) and "\0" not in value and name not in OURS}
