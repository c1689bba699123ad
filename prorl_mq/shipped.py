"""Files beside the packages: a checkout has them at its root, the wheel inside this package."""

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent


def shipped(name: str) -> Path:
    """The path of a file or folder, as `ops/redis.conf`. `pyproject.toml` lists what the wheel has."""
    installed = _PACKAGE / "shipped" / name
    return installed if installed.exists() else _PACKAGE.parent / name
