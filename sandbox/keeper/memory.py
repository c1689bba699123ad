"""The memory left to this process: the machine's, or its control group's if that is less."""

import contextlib
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
FILES = (  # of control groups version 2 and 1: the limit, what is used, and what of that is easily given back
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_share() -> float:
    """From 0 to 1: the share that can be used before a process is killed for it."""
    return min([_of_machine(), *(_of_group(directory) for directory in _groups())])


def _of_machine() -> float:
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    return int(rows["MemAvailable"].split()[0]) / int(rows["MemTotal"].split()[0])


def _groups() -> list[Path]:
    """The memory control group of this process and those above it."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in {"", "memory"}:
            top = CGROUPS / controllers
            own = top / path.lstrip("/")
            found = [each for each in (own, *own.parents) if each.is_relative_to(top) and each.is_dir()]
            if any((each / name).exists() for each in found for name, *_ in FILES):
                return found
    return []


def _of_group(directory: Path) -> float:
    for limit_file, used_file, cache_name in FILES:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says `max`
            limit = int((directory / limit_file).read_text())
            used = int((directory / used_file).read_text())
            rows = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
            return 1 - (used - int(rows[cache_name])) / limit
    return 1.0
