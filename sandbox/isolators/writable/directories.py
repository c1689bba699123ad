"""The writable directories of one sandbox: what is to be bound where, and what has to be done for it."""

import asyncio
import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sandbox.errors import SandboxError
from sandbox.isolators.bringup import start_failed
from sandbox.isolators.launch import Descriptors
from sandbox.isolators.writable.ways import ON_DISK, OVERLAYS, ImageDirectory, OverlayPlan, Way, Ways, mounter_argv
from sandbox.lifetime import label
from sandbox.protocol import SandboxSpec

COPY_S = 600.0


class WritableDirectories:
    """The directories of `spec.writable`, each by the best way that is open to it."""

    def __init__(self, ways: Ways, image: Path, spec: SandboxSpec) -> None:
        """Blocks for a probe, the first time. Raises `SandboxError` for a directory that the image lacks."""
        self._ways = ways
        self._size = spec.limits.disk_bytes
        self._disk = Path()
        places = [ways.placed(path, [str(within(image, path))]) for path in spec.writable]
        self._chosen = [(place, ways.best(place)) for place in places]
        overlaid = {way for _, way in self._chosen if way in OVERLAYS}
        if len(overlaid) > 1:  # images on several file systems: one layer of changes serves all
            self._chosen = [(each, Way.OVERLAY_ON_DISK if way in OVERLAYS else way) for each, way in self._chosen]
        self._overlaid = [place for place, way in self._chosen if way in OVERLAYS]

    @property
    def ways(self) -> str:
        """The ways taken, for the sandbox's label."""
        return ", ".join(dict.fromkeys(str(way) for _, way in self._chosen))

    def by(self, *ways: Way) -> tuple[str, ...]:
        """The places inside that go one of these ways."""
        return tuple(place.path for place, way in self._chosen if way in ways)

    @property
    def limited(self) -> tuple[str, ...]:
        """Places whose file systems are the sandbox's own, so that their use can be asked for."""
        return (*self.by(Way.OVERLAY)[:1], *self.by(Way.MEMORY))

    def made(self, directory: Path, made: label.Label) -> label.Label:
        """The label with the ways, and with a directory on disk if one is needed; what is copied is in it then.

        Blocks for as long as that takes. Raises `OSError`.
        """
        if not self._chosen:
            return made
        made = msgspec.structs.replace(made, writable=self.ways)
        if not self.by(*ON_DISK):
            label.write(directory, made)
            return made
        self._disk = self._ways.disk / secrets.token_hex(8)
        made = msgspec.structs.replace(made, disk=str(self._disk))
        label.write(directory, made)
        self._disk.mkdir(mode=0o700)
        (self._disk / "layers").mkdir()
        if os.geteuid() == 0:
            for path in (self._disk, self._disk / "layers"):
                os.chown(path, *self._ways.user)
        for place, way in self._chosen:
            if way in {Way.REFLINK, Way.DISK}:
                self._copy(place, shared=way is Way.REFLINK)
        return made

    def argv(self, descriptors: Descriptors, prefix: Sequence[str]) -> list[str]:
        """The start of the isolator's command line, in place of `prefix` where there is something to mount."""
        if not self._overlaid:
            return list(prefix)
        disk = str(self._disk / "layers") if self.by(Way.OVERLAY_ON_DISK) else ""
        plan = OverlayPlan(
            user=self._ways.user, base=self._ways.base, size=self._size, disk=disk, places=self._overlaid
        )
        return mounter_argv(plan, descriptors)

    def sources(self) -> dict[str, str | None]:
        """For each place inside what is to be bound there; None: an empty file system in memory."""
        found: dict[str, str | None] = {}
        for place, way in self._chosen:
            if way in OVERLAYS:
                found[place.path] = f"{self._ways.base}/{self._overlaid.index(place)}/m"
            else:
                found[place.path] = None if way is Way.MEMORY else str(self._copied(place))
        return found

    def _copied(self, place: ImageDirectory) -> Path:
        return self._disk / f"copy-{[each for each, _ in self._chosen].index(place)}"

    def _copy(self, place: ImageDirectory, *, shared: bool) -> None:
        target = self._copied(place)
        source = place.lowers[0]
        reflink = f"--reflink={'always' if shared else 'auto'}"
        commands = [["cp", "-R", "--preserve=mode,timestamps,links", "-P", reflink, "-T", source, str(target)]]
        if os.geteuid() == 0:
            user, group = self._ways.user
            commands.append(["chown", "-R", "-h", f"{user}:{group}", str(target)])
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, timeout=COPY_S, check=False)
            except subprocess.TimeoutExpired:
                raise OSError(110, f"{place.path} was not copied to {self._disk} in {COPY_S:.0f} s") from None
            if done.returncode:
                words = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
                raise OSError(5, f"{place.path} of the image could not be copied to {self._disk}: {words}")


async def prepare(ways: Ways, image: Path, spec: SandboxSpec) -> WritableDirectories:
    """Raises `SandboxStartFailed`."""
    if not spec.writable:
        return WritableDirectories(ways, image, spec)
    try:
        return await asyncio.to_thread(WritableDirectories, ways, image, spec)
    except (SandboxError, OSError) as error:
        raise start_failed(spec.owner, f"no writable directories: {error}") from error


def within(image: Path, place: str) -> Path:
    """The directory on the host. A link in an image must not lead to a file of the host's."""
    source = Path(os.path.realpath(image / place.lstrip("/")))
    if not source.is_relative_to(os.path.realpath(image)):
        raise SandboxError(f"{place} leads out of the image {image}")
    if not source.is_dir():
        raise SandboxError(f"the image {image} has no directory {place}")
    return source
