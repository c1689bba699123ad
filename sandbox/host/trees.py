"""Removal of directories that a sandbox wrote to, or that an image holds."""

import os
import shutil
from pathlib import Path


def remove_tree(directory: Path) -> None:
    """Also what its owner may not write to or enter. Blocks; does nothing if there is none."""
    if os.geteuid() != 0:
        for path, names, _ in os.walk(directory):
            for inner in (Path(path), *(Path(path, name) for name in names)):
                if not inner.is_symlink():
                    inner.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)
