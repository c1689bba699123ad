"""Child processes of the execution server: started under the sandbox's limits, awaited through a descriptor."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import sys
import termios
import threading
from typing import Any

LIMITS = (
    ("memory_bytes", resource.RLIMIT_DATA),
    ("processes", resource.RLIMIT_NPROC),
    ("file_bytes", resource.RLIMIT_FSIZE),
    ("cpu_s", resource.RLIMIT_CPU),
    ("open_files", resource.RLIMIT_NOFILE),
)
RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU, signal.SIGHUP)


def limit(values: dict[str, int]) -> None:
    """Lowers this process's limits for good. A limit that is lower already stays."""
    for name, kind in LIMITS:
        wanted = values.get(name)
        if wanted is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Child:
    """A started process. `exit_fd` becomes readable when it has ended; `collect` then gives its exit code."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.exit_fd = _exit_descriptor(pid)

    def collect(self) -> int:
        """Waits for the end. A signal n reads as 128 + n, as in a shell."""
        if self.code is None:
            status = os.waitpid(self.pid, 0)[1]
            self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            os.close(self.exit_fd)
        return self.code

    def signal_group(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _exit_descriptor(pid: int) -> int:
    if sys.version_info >= (3, 9):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    reader, writer = os.pipe()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writer)

    threading.Thread(target=wait, daemon=True).start()
    return reader


def start(
    argv: list[str],
    stdio: tuple[int, int, int],
    *,
    env: dict[str, str],
    cwd: str,
    limits: dict[str, int],
    terminal: bool = False,
    keep: tuple[int, ...] = (),
) -> Child:
    """Starts a program in a session of its own, with `stdio` as its descriptors 0 to 2.

    Raises the `OSError` of the exec. `keep` descriptors are inherited under their own numbers.
    """
    errors, errors_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(argv, stdio, errors_in, env=env, cwd=cwd, limits=limits, terminal=terminal, keep=keep)
    os.close(errors_in)
    with os.fdopen(errors, "rb") as stream:
        failure = stream.read()
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)), argv[0])
    return Child(pid)


def _become(argv: list[str], stdio: tuple[int, int, int], errors_in: int, **options: Any) -> None:
    """The child's side: never returns, and touches nothing that another thread could hold."""
    try:
        os.setsid()
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in stdio]
        for target, source in enumerate(sources):
            os.dup2(source, target)
        if options["terminal"]:
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        for fd in options["keep"]:
            os.set_inheritable(fd, True)
        with contextlib.suppress(OSError):
            os.chdir(options["cwd"])
        limit(options["limits"])
        os.execvpe(argv[0], argv, options["env"])  # noqa: S606
    except OSError as error:
        os.write(errors_in, b"%d" % (error.errno or 1))
    except BaseException:
        os.write(errors_in, b"1")
    finally:
        os._exit(127)
