"""The places that a sandbox asks to write to, as its maker may take them. A task's row may have named them."""

import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sandbox.isolators.bringup import start_failed
from sandbox.protocol import SandboxSpec

WHOLE = ("/", "/dev")  # places below may be asked for
OURS = ("/proc", "/sys", "/opt/prorl", "/opt/prorl-door")


def checked(spec: SandboxSpec, shown: str | None = None) -> SandboxSpec:
    """The spec with each place once and in its shortest form. Raises `SandboxStartFailed` for one that cannot be.

    `shown`: the host's directory that takes an image's place where none is named. Nothing else of the host's may be
    asked for: as root, the maker would give away files that only root can read.
    """
    empty = list(dict.fromkeys(_normal(spec.owner, spec.empty)))
    writable = [each for each in dict.fromkeys(_normal(spec.owner, spec.writable)) if each not in empty]
    if shown is not None and spec.image is None:
        for place in writable:
            if not Path(os.path.realpath(place)).is_relative_to(shown):
                raise start_failed(
                    spec.owner, f"{place!r} would be this machine's own: name an image, or a directory below {shown}"
                )
    return msgspec.structs.replace(spec, writable=writable, empty=empty)


def _normal(owner: str, places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if not place.startswith("/") or ".." in place.split("/") or "\0" in place:
            raise start_failed(owner, f"the place {place!r} must be an absolute path without `..`")
        path = "/" + posixpath.normpath(place).lstrip("/")
        if path in WHOLE or any(path == each or path.startswith(f"{each}/") for each in OURS):
            raise start_failed(owner, f"{place!r} holds what the sandbox itself needs: name another directory")
        yield path
