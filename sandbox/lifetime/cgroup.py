"""Hard limits for all of a sandbox together, by control groups of either version, where this process may make some.

Version 2: this process lives in a subgroup of a group that it may divide, and that has no processes of its own
(systemd: `Delegate=yes` with `DelegateSubgroup=`); or in a group that systemd says it may divide (`Delegate=yes`
alone, as in a scope of the user's own). Version 1: it may make directories below its own groups of memory and
processes. Elsewhere the server's watchdog is all there is.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from sandbox.lifetime import label
from sandbox.protocol import SandboxSpec

NEEDED, WANTED = ("memory", "pids"), ("memory", "pids", "cpu")
DELEGATED = "user.delegate"  # the attribute by which systemd says so; before its release 251 the next one alone
MARKS = (DELEGATED, "trusted.delegate")
SUBGROUP = "prorl"  # for the processes of a group that is to be divided
# The server, its threads and the isolator are in the group, too; Apptainer's has threads by the number of CPUs.
SPARE_PROCESSES, SPARE_BYTES = 32 + (os.cpu_count() or 1), 64 << 20
RUN_WEIGHT, EVAL_WEIGHT = 100, 400  # of CPU time; 100 is what a group has that nobody has weighed
SHARES = 1024  # the same in version 1
ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'
MOST_AND_LIMIT = ("max_usage_in_bytes", "limit_in_bytes")
OVERRUN_FILES, COUNTER_BYTES = ("memory.oom_control", "memory.events"), 4096  # of version 1, of version 2
EMPTY_S = 10.0
PREFIX = "sandbox-"
STALE_S = 600.0  # for groups without processes; a sandbox that starts has some within milliseconds
FULL_BYTES = 1 << 20  # below its limit a group is full: what did not fit was larger than a page


class ControlGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Directories, by controller, in which groups can be made. In version 2 it is the same for all."""

    version: int
    directories: Mapping[str, Path]

    @property
    def said(self) -> str:
        """A sentence for people."""
        places = ", ".join(sorted({str(each) for each in self.directories.values()}))
        return f"control groups (version {self.version}) hold {', '.join(self.directories)}, below {places}"


SOFT = (
    "no control groups can be made here, so a watchdog limits memory, with an overshoot, and CPU time is limited by a "
    "choice of CPUs"
)
MAKE_HARD = (
    "start the service in a unit with Delegate=yes, as a user by `systemd-run --user --scope -p Delegate=yes prorl-mq "
    "up ...`"
)


def delegated() -> ControlGroups | None:
    """The directories in which groups of sandboxes may be made; None where there are none."""
    cgroup, mountinfo = Path("/proc/self/cgroup").read_text("utf-8"), Path("/proc/self/mountinfo").read_text("utf-8")
    own = own_group(cgroup, mountinfo)
    group = own and ((_divisible(own.parent) if given(own.parent) else None) or _divided(own))
    if group:
        offered = (group / "cgroup.subtree_control").read_text("utf-8").split()
        return ControlGroups(version=2, directories={name: group for name in WANTED if name in offered})
    found = {name: place for name, place in own_groups(cgroup, mountinfo).items() if _holds(place)}
    return ControlGroups(version=1, directories=found) if set(NEEDED) <= set(found) else None


def _holds(place: Path) -> bool:
    """True for a group of version 1 below which groups can be made, whose limits hold for these, too."""
    hierarchy = place / "memory.use_hierarchy"  # 0 in kernels before 5.11, where nobody has said otherwise
    with contextlib.suppress(OSError):
        real = (place / "cgroup.procs").exists()  # and no file system that covers it
        return real and os.access(place, os.W_OK) and not (hierarchy.exists() and hierarchy.read_text("utf-8") == "0\n")
    return False


def own_group(cgroup: str, mountinfo: str) -> Path | None:
    """The directory of a process's group of version 2, by its files `cgroup` and `mountinfo`. None for the topmost."""
    paths = [line[3:] for line in cgroup.splitlines() if line.startswith("0::")]
    for root, mounted, kind, _ in mounts(mountinfo):
        if kind == "cgroup2" and paths and (under := below(paths[0], root)):
            return Path(mounted, under)
    return None


def own_groups(cgroup: str, mountinfo: str) -> Mapping[str, Path]:
    """The directories of a process's groups of version 1, by controller."""
    found = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in set(controllers.split(",")) & set(WANTED):
            for root, mounted, kind, options in mounts(mountinfo):
                under = below(path, root)
                if kind == "cgroup" and name in options and under is not None:
                    found[name] = Path(mounted, under)
    return {name: found[name] for name in WANTED if name in found}


def below(path: str, root: str) -> str | None:
    """A group's way from the directory that is mounted; None for one that does not lie in it.

    A process outside the top of its namespace's groups reads `/../...`: that is no place below the mount.
    """
    if ".." in path.split("/"):
        return None
    with contextlib.suppress(ValueError):
        return "" if path == root else str(PurePosixPath(path).relative_to(root))
    return None


def mounts(mountinfo: str) -> Iterable[tuple[str, str, str, Sequence[str]]]:
    """Of each: which directory of its file system is mounted, where, the file system and its own options."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        yield before.split()[3], before.split()[4], kind, options.split(",")


def given(group: Path) -> bool:
    """False for root and a group that nobody says is its to divide.

    A user may write where a group is the user's; root may write everywhere, and would divide a slice of systemd's: its
    sandboxes would leave the limits of its own unit.
    """
    return os.geteuid() != 0 or _marked(group)


def _marked(group: Path) -> bool:
    for name in MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _divisible(group: Path) -> Path | None:
    """A group that may be divided, and has no processes of its own."""
    with contextlib.suppress(OSError):
        offered = (group / "cgroup.controllers").read_text("utf-8").split()
        writable = all(os.access(group / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control"))
        if writable and set(NEEDED) <= set(offered) and not (group / "cgroup.procs").read_text("utf-8"):
            wanted = " ".join(f"+{name}" for name in WANTED if name in offered)
            (group / "cgroup.subtree_control").write_text(wanted, "utf-8")
            return group
    return None


def _divided(own: Path) -> Path | None:
    """A group that is delegated with processes in it: all of these go to a subgroup first."""
    with contextlib.suppress(OSError):
        offered = (own / "cgroup.controllers").read_text("utf-8").split()
        if not _marked(own) or not set(NEEDED) <= set(offered):  # of version 1, beside an empty version 2
            return None
        subgroup = own / SUBGROUP
        subgroup.mkdir(exist_ok=True)
        deadline = time.monotonic() + EMPTY_S
        while (pids := (own / "cgroup.procs").read_text("utf-8").split()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (subgroup / "cgroup.procs").write_text(pid, "utf-8")
        return _divisible(own)
    return None


def join(
    groups: ControlGroups | None, directory: Path, made: label.Label, spec: SandboxSpec
) -> tuple[label.Label, list[str]]:
    """Control groups for a sandbox, if there can be some: the label with them, and the start of a command line.

    What is started so runs in the groups from its first moment. The label knows them before they exist. What the
    sandbox's files take counts as memory, for they lie in memory. Raises `OSError`.
    """
    if groups is None:
        return made, []
    own = {name: place / f"{PREFIX}{made.sandbox_id}" for name, place in groups.directories.items()}
    places = [str(each) for each in dict.fromkeys(own.values())]
    made = msgspec.structs.replace(made, cgroups=tuple(places))
    label.write(directory, made)
    try:
        for each in places:
            Path(each).mkdir()
        _limit(own, _LIMITS[groups.version](spec))
    except OSError:
        remove([Path(each) for each in places])
        raise
    return made, entering(places)


def entering(places: Sequence[str]) -> list[str]:
    """The start of a command line of what is to run in groups; empty without any."""
    return ["/bin/sh", "-c", ENTER, "sh", *places, "--"] if places else []


def _limit(own: Mapping[str, Path], limits: Mapping[str, int]) -> None:
    """Writes what a kernel has; a file without `?` must be there if its controller is."""
    for name, value in limits.items():
        controller, file, needed = name.partition(".")[0], name.rstrip("?"), not name.endswith("?")
        if controller in own:
            with contextlib.suppress(*(() if needed else (FileNotFoundError,))):
                _write(own[controller] / file, value)


def clear(groups: ControlGroups) -> None:
    """Removes groups of sandboxes without a process, whose directory was lost with its label: no sweep knows them."""
    for place in set(groups.directories.values()):
        for left in place.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # it lives, or is another's
                if time.time() - left.stat().st_mtime > STALE_S:
                    left.rmdir()


def _write(file: Path, value: int) -> None:
    """Makes no file: a control group answers that with another error, and any other directory would have it."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _memory_bytes(spec: SandboxSpec) -> int:
    return spec.limits.memory_bytes + spec.limits.disk_bytes + SPARE_BYTES


def _version_2(spec: SandboxSpec) -> Mapping[str, int]:
    """Contents of files. `?`: a kernel that does not account for swap has none."""
    return {
        "memory.max": _memory_bytes(spec),
        "memory.swap.max?": 0,
        "pids.max": spec.limits.processes + SPARE_PROCESSES,
        "cpu.weight": EVAL_WEIGHT if spec.evaluates else RUN_WEIGHT,
    }


def _version_1(spec: SandboxSpec) -> Mapping[str, int]:
    return {
        "memory.limit_in_bytes": _memory_bytes(spec),
        "memory.memsw.limit_in_bytes?": _memory_bytes(spec),
        "memory.swappiness?": 0,  # where swap is not accounted for
        "pids.max": spec.limits.processes + SPARE_PROCESSES,
        "cpu.shares": SHARES * (EVAL_WEIGHT if spec.evaluates else RUN_WEIGHT) // 100,
    }


_LIMITS: Mapping[int, Callable[[SandboxSpec], Mapping[str, int]]] = {1: _version_1, 2: _version_2}


def remove(places: Sequence[Path]) -> None:
    """Kills what is left in groups, and removes them. Blocks until they are empty; usually they are.

    Raises `OSError` for one that is still not empty after `EMPTY_S`, and at once for one that is not ours to remove.
    """
    deadline = time.monotonic() + EMPTY_S
    for place in places:
        with contextlib.suppress(OSError):  # of another controller: nothing more can start
            _write(place / "pids.max", 0)
    for place in places:
        while place.exists():
            _kill(place)
            try:
                place.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)  # its last process is on its way out; an event would need a watch on its file


def overruns(places: Iterable[str]) -> int:
    """Counts processes that the kernel has ended for memory in groups that had reached their limit.

    The node may lack memory instead: then a group has not.
    """
    return sum(_overruns(Path(place)) for place in places)


class Overruns:
    """The count of `overruns`, which costs one system call while nothing has happened."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places
        self._files = list[int]()
        files = [Path(place, name) for place in places for name in OVERRUN_FILES]
        try:
            for each in filter(Path.exists, files):
                self._files.append(os.open(each, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # no descriptor is left, or a group has just gone
            self._close()
        self._said: Sequence[bytes] = ()
        self._count = 0

    def count(self) -> int:
        if not self._files:
            return overruns(self._places)
        try:
            said = [os.pread(each, COUNTER_BYTES, 0) for each in self._files]
        except OSError:  # its groups are gone
            return overruns(self._places)
        if said != self._said:
            self._said, self._count = said, overruns(self._places)
        return self._count

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    __del__ = _close


def _overruns(place: Path) -> int:
    with contextlib.suppress(OSError):  # the group of another controller; or it is gone
        if (place / "memory.oom_control").exists():  # `memory.failcnt` stays 0 in some kernels
            ended = _counters(place / "memory.oom_control").get("oom_kill", 0)
            return ended if ended and any(map(_was_full, (place / "memory", place / "memory.memsw"))) else 0
        counters = _counters(place / "memory.events")
        return counters.get("oom_kill", 0) if counters.get("oom", 0) else 0
    return 0


def _was_full(counter: Path) -> bool:
    """True if a counter of version 1 was once at its limit."""
    with contextlib.suppress(FileNotFoundError):  # a kernel that does not account for swap
        most, limit = (Path(f"{counter}.{each}").read_text("utf-8") for each in MOST_AND_LIMIT)
        return int(most) + FULL_BYTES > int(limit)
    return False


def _counters(file: Path) -> Mapping[str, int]:
    pairs = (line.split() for line in file.read_text("utf-8").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _kill(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if (place / "cgroup.kill").exists():  # version 2, from Linux 5.14 on
            (place / "cgroup.kill").write_text("1", "utf-8")
            return
        for pid in (place / "cgroup.procs").read_text("utf-8").split():
            if pid != "0":  # one of another PID namespace; to `kill` it would be our own process group
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
