"""Which image a row runs in: the operator's mapping, else the names under which data sets publish theirs.

A row never names a directory of the host: what it says itself becomes the name of a registry's image.
"""

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from prorl_mq.schema.faults import Cause
from workers.handlers.swe.rows import SweTask

MAPPING = "PRORL_SWE_IMAGES"  # names a JSON file: patterns of instance ids, and images with a name of NAMES
PREFIX = "EVAL_DOCKER_IMAGE_PREFIX"
NAMES = ("instance_id", "name", "name_1776")
USUAL_PREFIX = "xingyaoww/"


class NoImage(Exception):
    """Neither the row nor the operator says which image; trying again does not help."""

    retryable = False
    cause = Cause.ROW


class ImagesMisread(Exception):
    """The operator's mapping cannot be read. Nothing that a row could cure."""

    cause = Cause.NODE


def image_of(task: SweTask, environment: Mapping[str, str] = os.environ) -> str:
    """The image's name, as `Init.sandbox` takes it."""
    name = flat(task.instance_id)
    path = environment.get(MAPPING)
    for pattern, image in (_mapping(Path(path)) if path else {}).items():
        if fnmatch.fnmatchcase(task.instance_id, pattern):
            return _filled(image, task.instance_id)
    published = task.docker_image or task.image_name or task.image
    if not published and task.kind == "r2egym":
        raise NoImage(f"{task.instance_id}: an R2E-Gym row without docker_image names no image; {MAPPING} can")
    if not published:
        published = f"{environment.get(PREFIX) or USUAL_PREFIX}sweb.eval.x86_64.{name}"
    return published if published.startswith("docker://") else f"docker://{published}"


def _filled(image: str, instance_id: str) -> str:
    """Raises `ImagesMisread`."""
    name_1776 = instance_id.replace("__", "_1776_").lower()  # SWE-bench's own form
    try:
        return image.format(name=flat(instance_id), name_1776=name_1776, instance_id=instance_id)
    except (LookupError, ValueError, AttributeError) as error:
        known = ", ".join(f"{{{each}}}" for each in NAMES)
        raise ImagesMisread(f"{MAPPING} has the image {image!r}, whose braces may hold {known} alone") from error


def flat(instance_id: str) -> str:
    """An instance's name as a registry takes it."""
    return instance_id.replace("__", "_s_").lower()


def _mapping(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ImagesMisread(
            f"{MAPPING} names {path}, which is no JSON object of patterns and images: {error}"
        ) from error
