"""The ways to let a sandbox write to a directory of its image, and the best one that this machine can go.

An overlay costs no time and no memory. It needs a kernel that lets users mount one, and an image whose files belong to
the sandbox's user, or to root if the worker is root: through an overlay, other users' files cannot be written.
"""

import contextlib
import enum
import fcntl
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sandbox.errors import SandboxError
from sandbox.host import unprivileged
from sandbox.host.reachable import reachable_place
from sandbox.isolators.launch import Descriptors
from sandbox.isolators.payload import compiled, joined

FICLONE = 0x40049409
TRY_BYTES = 1 << 20
TRY_S = 20.0
LOOKED_AT = 1000  # entries, for one whose content can be cloned
IN_MEMORY = {"tmpfs", "ramfs"}


class Way(enum.StrEnum):
    """In the order in which they are tried."""

    OVERLAY = "overlay"  # its layer of changes lies in memory, as the other writable places do
    OVERLAY_ON_DISK = "overlay on disk"  # before Linux 6.6 none can lie in memory
    REFLINK = "reflink copy"
    DISK = "copy on disk"
    MEMORY = "copy in memory"


OVERLAYS = (Way.OVERLAY, Way.OVERLAY_ON_DISK)
ON_DISK = (Way.OVERLAY_ON_DISK, Way.REFLINK, Way.DISK)


class ImageDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of an image. `lowers`: the host's directories that hold it, the uppermost layer first."""

    path: str  # inside
    lowers: tuple[str, ...]
    of_root: bool = False  # its files are root's, where sandboxes run as another user


class OverlayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the program `mounter`."""

    user: tuple[int, int]
    base: str  # an empty directory, on which all is mounted
    size: int  # bytes of the layer of changes, where that lies in memory
    disk: str  # an empty directory for it; empty: it lies in memory
    places: Sequence[ImageDirectory]


@functools.cache
def mounter_code() -> bytes:
    return compiled(joined(["server/libc", "isolators/writable/mounter"]), sys.executable)


def mounter_argv(plan: OverlayPlan, descriptors: Descriptors) -> list[str]:
    """The start of a command line. Where the worker is root, what follows runs as the sandboxes' user."""
    code = descriptors.add_data("mounter", mounter_code())
    return [sys.executable, "-I", "-S", f"/proc/self/fd/{code}", msgspec.json.encode(plan).decode()]


def run_mounter(plan: OverlayPlan, *command: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command where everything is mounted, without a sandbox; without one, the mounter's own trial. Blocks."""
    argv = [sys.executable, "-I", "-S", "-c", "exec(__import__('sys').stdin.buffer.read())"]
    source = joined(["server/libc", "isolators/writable/mounter"])
    words = [msgspec.json.encode(plan).decode(), *command]
    return subprocess.run([*argv, *words], input=source, timeout=TRY_S, check=False, capture_output=True)


class Ways:
    """The ways of one provider; each is tried once for every file system and owner that images have. Blocks."""

    def __init__(self, state_dir: Path, allowed: Sequence[Way] = tuple(Way)) -> None:
        """`allowed`: for tests and benchmarks."""
        self.user = unprivileged.identity()
        self._state_dir = state_dir
        self._allowed = allowed
        self._known: dict[tuple[Way, int, bool], str] = {}

    def best(self, place: ImageDirectory) -> Way:
        return next((way for way in self._allowed if not self.problem(way, place)), Way.MEMORY)

    def problem(self, way: Way, place: ImageDirectory) -> str:
        """Why this way is closed to a directory; empty: it is open."""
        owners = owners_of(place.lowers)
        if way in OVERLAYS and len(owners) > 1:
            return f"files of {place.path} belong to several users or groups"
        if way in OVERLAYS and owners != {self.user} and not place.of_root:
            return f"files of {place.path} belong to another user or group than the sandbox's, {self.user}"
        key = (way, Path(place.lowers[0]).stat().st_dev, place.of_root)
        if key not in self._known:
            try:
                self._known[key] = self._tried(way, place)
            except (OSError, SandboxError, subprocess.SubprocessError) as error:
                return str(error)  # of this place or of this moment alone: it is tried again
        return self._known[key]

    def here(self) -> dict[Way, str]:
        """The ways up to the best one, each with what is wrong with it, for an image that is as it should be."""
        with self._temporary() as name:
            image = Path(name, "image")
            image.mkdir()
            (image / "file").write_text("x")
            if os.geteuid() == 0:
                os.chown(image / "file", *self.user)
                os.chown(image, *self.user)
            directory = self.placed("/image", [str(image)])
            found: dict[Way, str] = {}
            for way in self._allowed:
                found[way] = self.problem(way, directory)
                if not found[way]:
                    break
        return found

    def placed(self, path: str, lowers: Sequence[str]) -> ImageDirectory:
        of_root = os.geteuid() == 0 and owners_of(lowers) == {(0, 0)}
        return ImageDirectory(path=path, lowers=tuple(lowers), of_root=of_root)

    @property
    def base(self) -> str:
        """The directory on which each sandbox mounts its own overlays, in namespaces of its own."""
        return str(self._open("mounts"))

    @property
    def disk(self) -> Path:
        """The directory for what sandboxes hold on disk."""
        return self._open("changes")

    def _open(self, name: str) -> Path:
        place = self._state_dir / name
        if os.geteuid() == 0:
            return reachable_place(place)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _tried(self, way: Way, place: ImageDirectory) -> str:
        match way:
            case Way.OVERLAY | Way.OVERLAY_ON_DISK:
                return self._try_overlay(place, on_disk=way is Way.OVERLAY_ON_DISK)
            case Way.REFLINK:
                return self._try_clone(place)
            case Way.DISK:
                return f"{self.disk} lies in memory" if file_system(self.disk) in IN_MEMORY else ""
            case Way.MEMORY:
                return ""

    def _try_overlay(self, place: ImageDirectory, *, on_disk: bool) -> str:
        """With a small layer of our own below the image's, which has something to remove."""
        with self._temporary() as name:
            lower, upper = Path(name, "lower"), Path(name, "upper")
            (lower / "probe").mkdir(parents=True)
            (lower / "probe" / "file").touch()
            upper.mkdir()
            if os.geteuid() == 0:
                os.chown(upper, *self.user)
                for path in (lower, lower / "probe", lower / "probe" / "file"):
                    os.chown(path, *((0, 0) if place.of_root else self.user))
            tried = msgspec.structs.replace(place, lowers=(str(lower), *place.lowers))
            plan = OverlayPlan(
                user=self.user, base=self.base, size=TRY_BYTES, disk=str(upper) if on_disk else "", places=[tried]
            )
            done = run_mounter(plan)
            words = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            return (words or f"the mounter ended with {done.returncode}") if done.returncode else ""

    def _try_clone(self, place: ImageDirectory) -> str:
        source = next(_files(place.lowers[0]), None)
        if source is None:
            raise SandboxError(f"{place.path} has no file to try it with")
        with self._temporary() as name, source.open("rb") as given, Path(name, "clone").open("wb") as made:
            try:
                fcntl.ioctl(made, FICLONE, given.fileno())
            except OSError as error:
                return f"{self.disk} cannot share what {place.lowers[0]} holds: {error.strerror}"
        return ""

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=self.disk) as name:
            Path(name).chmod(0o711)
            try:
                yield name
            finally:
                for path in Path(name).glob("upper/*/w/work"):
                    path.chmod(0o700)  # the kernel shuts it


def owners_of(lowers: Sequence[str]) -> set[tuple[int, int]]:
    """User and group of the directories and of what lies right in them: the rest of an image's directory is like it."""
    found = set()
    for lower in lowers:
        for path in (lower, *(entry.path for entry in os.scandir(lower))):
            seen = os.lstat(path)
            found.add((seen.st_uid, seen.st_gid))
    return found


def file_system(path: Path) -> str:
    """Its type; empty if the kernel does not tell."""
    found = path.stat().st_dev
    device = f"{os.major(found)}:{os.minor(found)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == device:
            return after.split()[0]
    return ""


def _files(top: str) -> Iterator[Path]:
    """Regular files with content, of the first entries."""
    looked = 0
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            looked += 1
            if looked > LOOKED_AT:
                return
            if not path.is_symlink() and path.is_file() and path.stat().st_size and os.access(path, os.R_OK):
                yield path
