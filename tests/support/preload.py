"""Libraries that are preloaded into a server: compiled where they are used."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def built(source: Path) -> Path:
    """The library of a C file, built once for each version of it. Raises `RuntimeError` without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(f"{source} has to be compiled: install a C compiler (Debian: gcc libc6-dev)")
    cache = Path(tempfile.gettempdir()) / f"prorl-preload-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    library = cache / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", partial, source], check=True)
        partial.rename(library)
    return library
