"""The way into a sandbox from outside, for images that have no Python to run the server with.

The server is loaded outside and joins the sandbox's namespaces, except for that of processes: so it opens files and
terminals inside, and no process inside can see it. What it starts is born inside, with the sandbox's own rights.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

from sandbox.server.libc import CAPABILITY_BOUND_DROP, CHILD_SUBREAPER, NO_NEW_PRIVILEGES, call, prctl
from sandbox.server.sealing.seal import Seal

NAMESPACES = ("mnt", "ipc", "uts", "net", "cgroup")
OWNING_USER_NAMESPACE = 0xB701  # ioctl NS_GET_USERNS
CAPABILITY_VERSION = 0x20080522
CAPABILITIES = 64
NUMBER = struct.Struct("i")


class EnteredSandbox:
    """An entered sandbox."""

    def __init__(self, pid: int, *, sealed: bool) -> None:
        """Joins the namespaces of the process `pid`; it must be called before there are threads. Raises `OSError`."""
        self._seal = Seal() if sealed else None
        prctl(CHILD_SUBREAPER, 1)
        os.sched_setaffinity(0, os.sched_getaffinity(pid))
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts = _namespace(pid, "mnt")
        spaces = [mounts] + [_namespace(pid, name) for name in NAMESPACES[1:] if not _shared(pid, name)]
        self._processes = _namespace(pid, "pid")
        self._user = _namespace(pid, "user")
        owner = fcntl.ioctl(mounts, OWNING_USER_NAMESPACE)
        self._nested = not os.path.sameopenfile(owner, self._user)
        for space in (owner, *spaces):
            call("setns", space, 0)
        os.fchdir(root)
        os.chroot(".")
        for descriptor in (root, owner, *spaces):
            os.close(descriptor)

    def fork(self) -> int:
        """As `os.fork`, but the new process is one of the sandbox."""
        told, telling = os.pipe()
        between = os.fork()
        if between == 0:
            if self._bear(telling) == 0:
                return 0
            os._exit(0)  # its child becomes ours by that
        os.close(telling)
        try:
            answer = os.read(told, NUMBER.size)
        finally:
            os.close(told)
            os.waitpid(between, 0)
        if not answer:
            raise OSError(11, "the sandbox takes no more processes", "fork")
        return int(NUMBER.unpack(answer)[0])

    def _bear(self, telling: int) -> int:
        with contextlib.suppress(OSError):
            call("setns", self._processes, 0)
            pid = os.fork()
            if pid:
                os.write(telling, NUMBER.pack(pid))
            return pid
        return -1

    def shed(self) -> None:
        """In a new process: gives up every right that is not the sandbox's, for good. Raises `OSError`."""
        if self._nested:
            call("setns", self._user, 0)
        with contextlib.suppress(OSError):  # of the first number that the kernel does not know
            for number in range(CAPABILITIES):
                prctl(CAPABILITY_BOUND_DROP, number)
        prctl(NO_NEW_PRIVILEGES, 1)
        call("capset", struct.pack("Ii", CAPABILITY_VERSION, 0), bytes(24))
        if self._seal is not None:
            self._seal.set()


def _namespace(pid: int, name: str) -> int:
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def _shared(pid: int, name: str) -> bool:
    return os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
