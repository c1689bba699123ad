"""The user that sandboxes run as: the kernel enforces no process limit on root, so root's run as another user."""

import os
import pwd
import shutil

from sandbox.errors import SandboxUnavailable

USER = "nobody"


def prefix() -> list[str]:
    """The words before an isolator's own command line. Raises `SandboxUnavailable`."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxUnavailable("as root, sandboxes need setpriv (Debian's package util-linux): install it")
    user, group = identity()
    return [setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups"]


def identity() -> tuple[int, int]:
    """The user and the group that sandboxes have on the host."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    user = pwd.getpwnam(USER)
    return user.pw_uid, user.pw_gid
