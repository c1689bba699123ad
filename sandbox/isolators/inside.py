"""The inside view of an isolated sandbox: its one user, its settings, its environment."""

from sandbox.isolators.bubblewrap_argv import HOME, PATH

ENVIRONMENT = {
    "PATH": PATH, "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash",
    "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "MANPAGER": "cat",
}  # fmt: skip


def files_of(user: int, group: int) -> dict[str, str]:
    """Settings that take the place of the host's or the image's."""
    return {
        "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{user}:{group}::{HOME}:/bin/bash\n",
        "/etc/group": f"root:x:0:\nagent:x:{group}:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
