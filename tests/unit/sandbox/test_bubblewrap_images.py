"""Bubblewrap takes directories as images, and says so where an image is none."""

from pathlib import Path

import pytest

from sandbox.errors import SandboxError
from sandbox.isolators import bubblewrap
from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.protocol import SandboxSpec

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("image", ["docker://debian:12", "/nowhere/image.sif"])
async def test_an_image_that_is_no_directory_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """It failed over a directory that the image lacks, or over its Python."""
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: "/bin/false")
    provider = BubblewrapProvider("node", tmp_path)
    spec = SandboxSpec(owner="job:1", image=image, writable=["/testbed"])
    with pytest.raises(SandboxError, match=f"{image} is none: install Apptainer"):
        await provider.create(spec)
