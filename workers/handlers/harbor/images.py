"""The image that a task runs in: one that was built here, one of the operator's own, or a registry's.

DIRECTORY = STATE/images/harbor
DIRECTORY/DIGEST        an image that was built, as a directory
DIRECTORY/images.json   patterns of images' names, and what is taken in their place: SIF files, or other names

A row never names a directory of the host.
"""

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from prorl_mq.schema.faults import Cause
from sandbox.host.reachable import reachable_place
from workers.handlers.harbor.recipe import BUILT
from workers.handlers.rows import BadRow

REGISTRY = "docker://"
MAPPING = "images.json"


class ImageMissing(Exception):
    """An image that was to be built beforehand is not on this node."""

    retryable = False
    cause = Cause.NODE


class MappingMisread(Exception):
    """The operator's file of images cannot be read. Nothing that a row could cure."""

    cause = Cause.NODE


def directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of this node's images: below that of `prorl-mq install-tools`, else of the node's data."""
    state = environment.get("PRORL_SANDBOX_TOOLS") or environment.get("PRORL_STATE") or ".state"
    return Path(state).absolute() / "images" / "harbor"


def image_of(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The image of a row, as `Init.sandbox` takes it. Blocks."""
    place = directory(environment)
    if name.startswith(REGISTRY):
        return mapped(name.removeprefix(REGISTRY), place)
    key = name.removeprefix(BUILT)
    if name == key or not key.isalnum():
        raise BadRow(f"the image {name!r} is neither {REGISTRY}NAME nor {BUILT}DIGEST")
    image = built_place(place) / key
    if not image.is_dir():
        raise ImageMissing(
            f"the image {name} was not built on this node: run `python -m workers.handlers.harbor build TASKS` with "
            "the tasks that the rows were made of"
        )
    return str(image)


def built_place(place: Path) -> Path:
    """The directory that images are built to: the same, unless the user that sandboxes run as cannot enter it."""
    return reachable_place(place) if os.geteuid() == 0 else place


def mapped(name: str, place: Path) -> str:
    """A registry's image, or what the operator takes in its place."""
    try:
        patterns = msgspec.json.decode((place / MAPPING).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        patterns = {}
    except (OSError, msgspec.MsgspecError) as error:
        raise MappingMisread(f"{place / MAPPING} is no JSON object of patterns and images: {error}") from error
    for pattern, image in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            given = image.format(name=name)
            return given if "://" in given else str((place / given).resolve())
    return f"{REGISTRY}{name}"
