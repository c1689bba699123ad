"""File systems as this machine has them mounted."""

from pathlib import Path


def here(directory: str) -> str:
    """The type of the file system that a directory lies on, now and on this machine."""
    return file_system(Path(directory), Path("/proc/self/mountinfo").read_text())


def file_system(directory: Path, mountinfo: str) -> str:
    """The type of the file system that a directory lies on; empty where there is no such directory here.

    Source: proc(5), /proc/PID/mountinfo.
    """
    if not directory.is_absolute() or not directory.is_dir():
        return ""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mounted = Path(before.split()[4])
        if directory.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, found = len(mounted.parts), after.split()[0]
    return found
