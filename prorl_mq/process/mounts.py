"""File systems as this machine has them mounted."""

from pathlib import Path


def here(directory: str, process: int) -> str:
    """The type of the file system that a server's directory lies on, now and on this machine. Empty unless the server,
    which works in that directory, is a process of this machine: another one may have a directory of the same name.
    """
    there = Path(f"/proc/{process}")
    try:
        if not directory or (there / "cwd").readlink() != Path(directory):
            return ""
        return file_system(Path(directory), (there / "mountinfo").read_text())
    except OSError:
        return ""


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
