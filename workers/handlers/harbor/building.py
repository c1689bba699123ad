"""Builds the images of tasks from their Dockerfiles by Apptainer, without root. An image is built once.

The commands of a Dockerfile run as this user, with the network, in a container of their own: build what you trust.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host import unprivileged
from sandbox.host.trees import remove_tree
from sandbox.isolators.apptainer import find_apptainer
from workers.handlers.harbor import dockerfile, images, recipe

_SAID = 3000


class BuildFailed(SandboxError):
    """Apptainer could not make an image; the message ends with its last words."""


async def build(environment: Path, place: Path, tools: Path, *, timeout_s: float) -> tuple[Path, bool]:
    """The image of a task's `environment` directory in a directory of images, and whether it was built just now.

    Raises `Unbuildable`, `BuildFailed`, `SandboxUnavailable`.
    """
    key = await asyncio.to_thread(recipe.digest, environment)
    built = dockerfile.read((environment / "Dockerfile").read_text(encoding="utf-8"))
    target = images.built_place(place)
    if (target / key).is_dir():
        return target / key, False
    target.mkdir(parents=True, exist_ok=True)
    fresh = target / f".building-{secrets.token_hex(6)}"
    try:
        await asyncio.to_thread(_lay_out, fresh, environment, built, images.mapped(built.image, place))
        await _apptainer(fresh, find_apptainer(tools), timeout_s)
        try:
            (fresh / "image").rename(target / key)
        except OSError:  # somebody else was faster
            if not (target / key).is_dir():
                raise
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, fresh))
    return target / key, True


def _lay_out(fresh: Path, environment: Path, built: dockerfile.Dockerfile, image: str) -> None:
    context = fresh / "context"
    shutil.copytree(environment, context / recipe.FILES, ignore=shutil.ignore_patterns(*recipe.CACHES))
    (context / recipe.STEPS).write_text(recipe.script(built), encoding="utf-8")
    scheme, _, source = image.rpartition("://")
    text = recipe.definition(scheme or "localimage", source, context)
    (fresh / "image.def").write_text(text, encoding="utf-8")
    for path in (fresh, *fresh.rglob("*")):
        os.chown(path, *unprivileged.identity())


async def _apptainer(fresh: Path, program: str, timeout_s: float) -> None:
    fakeroot = ["--fakeroot", "--ignore-subuid"]  # root in a namespace of this user alone: no setuid helper is needed
    argv = [*unprivileged.prefix(), program, "build", *fakeroot, "--fix-perms", "--sandbox", "image", "image.def"]
    places = {"TMPDIR": "", "APPTAINER_TMPDIR": "", "APPTAINER_CONFIGDIR": "config", "APPTAINER_CACHEDIR": "cache"}
    environment = {**os.environ, "HOME": str(fresh), **{name: str(fresh / at) for name, at in places.items()}}
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=fresh, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            said, _ = await process.communicate()
    except TimeoutError:
        raise BuildFailed(f"it took longer than {timeout_s:.0f} s ([environment].build_timeout_sec)") from None
    finally:
        if process.returncode is None:
            _end(process.pid)
            await asyncio.shield(process.wait())
    if process.returncode != 0:
        raise BuildFailed(said[-_SAID:].decode(errors="replace").strip())


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
