"""An image of a registry runs with its own variables, in both kinds of sandboxes."""

import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from sandbox.host import unprivileged
from sandbox.host.reachable import reachable_place
from sandbox.images.cache import ImageCache
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import SandboxSpec
from tests.sandbox.conftest import ISOLATED, NODE, TOOLS_DIR, image_without_python, require_apptainer
from tests.support.registry import LoopbackRegistry

__all__ = ["image_without_python"]
pytestmark = pytest.mark.anyio
ENV = ["PATH=/opt/own/bin:/usr/bin:/bin", "GREETING=it's a $word", "HOME=/root", "GIVEN=image"]


@pytest.mark.parametrize("kind", ISOLATED)
async def test_an_images_variables_hold_in_programs_and_in_the_shell(
    cache: Callable[..., ImageCache], registry: LoopbackRegistry, place: Path, image_without_python: Path, kind: str
) -> None:
    if kind == "apptainer":
        require_apptainer()
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(image_without_python, ".")
    name = registry.push("own", [layer.getvalue()], env=ENV)
    made = cache("state/image-cache")
    made.directory = reachable_place(made.directory) if unprivileged.prefix() else made.directory  # the provider's
    image = await made.fetch(name)
    provider = make_provider(kind, node=NODE, state_dir=place / "state", python_dir=None, tools_dir=TOOLS_DIR)
    try:
        named = name if kind == "apptainer" else str(image.path)
        box = await provider.create(SandboxSpec(owner="job", image=named, environment={"GIVEN": "row"}))
        try:
            show = 'echo "$PATH|$GREETING|$HOME|$GIVEN"'
            expected = "/opt/own/bin:/usr/bin:/bin|it's a $word|/home/agent|row\n"
            assert (await box.run(["sh", "-c", show])).stdout.decode() == expected
            assert expected.strip() in (await box.bash(show)).output
        finally:
            await box.close()
    finally:
        await provider.aclose()
        image.close()
