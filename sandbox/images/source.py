"""The source of an image: a registry, or a file of this machine."""

import hashlib
from pathlib import Path

import msgspec

from sandbox.errors import SandboxError
from sandbox.images.registry.reference import ORAS, SCHEME

REGISTRIES = (SCHEME, ORAS, "library://")
ARCHIVES = ("docker-archive:", "oci-archive:")
SIF = (32, b"SIF_MAGIC")


class ImageSource(msgspec.Struct, frozen=True, kw_only=True):
    """`uri` is what Apptainer is told; `key` names this state of it; `file` is set if it is a file of this machine."""

    uri: str
    key: str
    file: Path | None = None

    @property
    def of_registry(self) -> bool:
        """True for what a registry has: a container image, or a SIF file; library is Apptainer's own business."""
        return self.uri.startswith((SCHEME, ORAS))

    @property
    def is_artifact(self) -> bool:
        """True for a SIF file in a registry."""
        return self.uri.startswith(ORAS)


def image_source(text: str) -> ImageSource:
    """Reads the file's state (blocks). Raises `SandboxError` for what is no image.

    A file that is neither an image file nor an archive is refused, for Apptainer would take it for a recipe, and would
    run on this host what stands in it.
    """
    if text.startswith(REGISTRIES):
        return ImageSource(uri=text, key=_key(text))
    scheme = next((archive for archive in ARCHIVES if text.startswith(archive)), "")
    path = Path(text.removeprefix(scheme).removeprefix("file:").removeprefix("//")).absolute()
    try:
        found = path.stat()
        with path.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise SandboxError(f"the image {text!r} cannot be read: {error}; known sources are {_known()}") from error
    if not scheme and not head.startswith(SIF[1], SIF[0]):
        raise SandboxError(f"{text!r} is no SIF file; known sources are {_known()}")
    key = _key(f"{scheme}{path} {found.st_mtime_ns} {found.st_size}")
    return ImageSource(uri=f"{scheme}{path}", key=key, file=path)


def _key(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _known() -> str:
    return f"directories, SIF files, {', '.join((*ARCHIVES, *REGISTRIES))}"
