"""Names of images in registries, and the places where each can be had."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from sandbox.errors import ImageUnavailable

SCHEME: Final = "docker://"
ORAS: Final = "oras://"  # a SIF file that a registry keeps as an artifact
HUB, HUB_HOST, HUB_LIBRARY = "docker.io", "registry-1.docker.io", "library"
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?")


class RegistryPlace(msgspec.Struct, frozen=True):
    """A repository of one registry: `base` is the registry's URL without a path."""

    base: str
    repository: str

    @property
    def host(self) -> str:
        """As a login file names it, with the port."""
        return self.base.partition("://")[2]


class ImageName(msgspec.Struct, frozen=True, kw_only=True):
    """`docker://HOST/REPOSITORY:TAG`, or with `@sha256:...`, taken apart; `want` is the digest, else the tag.

    So is `oras://`.
    """

    host: str
    repository: str
    want: str

    @property
    def pinned(self) -> bool:
        """True if the name says which bytes it means."""
        return DIGEST.fullmatch(self.want) is not None

    def places(self, mirrors: Mapping[str, Sequence[str]]) -> list[RegistryPlace]:
        """Mirrors of the longest prefix that fits, in their order; the registry itself comes last."""
        name = f"{self.host}/{self.repository}"
        fitting = [prefix for prefix in mirrors if name == prefix or name.startswith(f"{prefix}/")]
        found: list[RegistryPlace] = []
        if fitting:
            prefix = max(fitting, key=len)
            rest = name[len(prefix) :].strip("/")
            for mirror in mirrors[prefix]:
                base, path = _mirror(mirror)
                found.append(RegistryPlace(base, "/".join(filter(None, (path, rest)))))
        return [*found, RegistryPlace(base_of(HUB_HOST if self.host == HUB else self.host), self.repository)]


def reference(text: str) -> ImageName:
    """Raises `ImageUnavailable` for what names no image of a registry."""
    rest, _, digest = text.removeprefix(SCHEME).removeprefix(ORAS).partition("@")
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, rest = first, path
    else:
        host = HUB
    repository, _, tag = rest.partition(":")
    if host == HUB and "/" not in repository:
        repository = f"{HUB_LIBRARY}/{repository}"
    wrong = (
        "a host" if not _HOST.fullmatch(host) else
        "a repository (lower case, digits, . _ - /)" if not _REPOSITORY.fullmatch(repository) else
        "a tag" if tag and not _TAG.fullmatch(tag) else
        "a digest (sha256: and 64 digits)" if "@" in text and not DIGEST.fullmatch(digest) else ""
    )  # fmt: skip
    if wrong:
        raise ImageUnavailable(f"{text!r} names no image: it lacks {wrong}, as in docker://HOST/NAME:TAG", final=True)
    return ImageName(host=host, repository=repository, want=digest or tag or "latest")


def base_of(host: str) -> str:
    """The URL of a registry: https, and plain http on this machine alone."""
    return f"{'http' if is_loopback(host) else 'https'}://{host}"


def is_loopback(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _mirror(text: str) -> tuple[str, str]:
    """A mirror's base and the path in front of its repositories. `check_mirror` has found it well-formed."""
    host, _, path = text.partition("://")[2].strip("/").partition("/") if "://" in text else text.partition("/")
    return base_of(host), path.strip("/")


def check_mirror(text: str) -> str | None:
    """Why a text cannot be a mirror; None if it can."""
    scheme, found, rest = text.partition("://")
    host = (rest if found else text).partition("/")[0]
    if found and scheme not in {"http", "https"}:
        return f"{text!r} is neither http:// nor https://"
    if not _HOST.fullmatch(host):
        return f"{text!r} names no host"
    if found and scheme == "http" and not is_loopback(host):
        return f"{text!r} is plain http, which is for this machine alone: what it sends could be replaced"
    return None
