"""Manifests of images, Docker's and OCI's: which one of an index is this machine's, and which layers it has."""

import platform
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from sandbox.errors import ImageUnavailable
from sandbox.images.registry.reference import ORAS, SCHEME

INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
)  # fmt: skip
MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
)  # fmt: skip
ACCEPTED: Final = ", ".join((*MANIFESTS, *INDEXES))
COMPRESSIONS: Final = {
    "application/vnd.oci.image.layer.v1.tar": "none",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
}
SIF: Final = "application/vnd.sylabs.sif.layer.v1.sif"
MOST_LAYERS: Final = 512
MOST_CONFIG_BYTES: Final = 4 << 20  # it is read whole
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A blob as a manifest names it; `size` in bytes."""

    digest: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=0)]
    media_type: str = ""

    @property
    def compression(self) -> str:
        return COMPRESSIONS[self.media_type]


class Manifest(msgspec.Struct, frozen=True):
    """One image: its configuration, and its layers from the lowest up."""

    config: Descriptor
    layers: Annotated[list[Descriptor], Meta(min_length=1, max_length=MOST_LAYERS)]

    @property
    def bytes_total(self) -> int:
        """Size of all blobs; a layer that occurs twice counts once."""
        return sum({each.digest: each.size for each in (self.config, *self.layers)}.values())


class _Platform(msgspec.Struct, frozen=True):
    os: str = ""
    architecture: str = ""


class _Entry(Descriptor, frozen=True, rename="camel"):
    platform: _Platform = _Platform()


class _Index(msgspec.Struct, frozen=True):
    manifests: list[_Entry]


class _Kind(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""
    schema_version: int = 2
    manifests: list[Any] | None = None


class _RunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    env: list[str] | None = None
    working_dir: str | None = None


class ImageConfig(msgspec.Struct, frozen=True):
    """The part of an image's configuration that says how it is run."""

    config: _RunConfig | None = None


def parse(data: bytes, about: str) -> Manifest | Descriptor:
    """The manifest, or where an index has this machine's. Raises `ImageUnavailable`."""
    try:
        kind = msgspec.json.decode(data, type=_Kind)
        if kind.schema_version != 2:
            raise ImageUnavailable(
                f"{about} has a manifest of schema {kind.schema_version}, which is no longer used: push it again",
                final=True,
            )
        if kind.media_type in INDEXES or kind.manifests is not None:
            return _of_this_machine(msgspec.json.decode(data, type=_Index), about)
        found = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ImageUnavailable(f"{about} has a manifest that cannot be read: {error}", final=True) from error
    if found.config.size > MOST_CONFIG_BYTES:
        raise ImageUnavailable(f"{about} has a configuration of {found.config.size} bytes", final=True)
    kinds = [layer.media_type for layer in found.layers]
    if about.startswith(ORAS) != (SIF in kinds) or (SIF in kinds and len(kinds) > 1):
        what = "no single SIF file" if about.startswith(ORAS) else "a SIF file"
        raise ImageUnavailable(
            f"{about} is {what}: name a SIF file by {ORAS}, and a container image by {SCHEME}", final=True
        )
    for layer in found.layers:
        if layer.media_type != SIF and layer.media_type not in COMPRESSIONS:
            raise ImageUnavailable(f"{about} has a layer of type {layer.media_type!r}, which is not known", final=True)
    return found


def _of_this_machine(index: _Index, about: str) -> Descriptor:
    wanted = _Platform("linux", MACHINES.get(platform.machine(), platform.machine()))
    for entry in index.manifests:
        if entry.platform == wanted:
            return entry
    offered = ", ".join(sorted({f"{each.platform.os}/{each.platform.architecture}" for each in index.manifests}))
    raise ImageUnavailable(
        f"{about} is not for {wanted.os}/{wanted.architecture}; there is it for {offered or 'nothing'}", final=True
    )
