"""Child processes of the execution server: started under the sandbox's limits, awaited through a descriptor."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

from sandbox.server.entry import EnteredSandbox

LIMITS = (
    ("memory_bytes", resource.RLIMIT_DATA),
    ("processes", resource.RLIMIT_NPROC),
    ("file_bytes", resource.RLIMIT_FSIZE),
    ("cpu_s", resource.RLIMIT_CPU),
    ("open_files", resource.RLIMIT_NOFILE),
)
FREEZE_PASSES = 50
RESET_SIGNALS = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU, signal.SIGHUP,
)  # fmt: skip


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


class StartedChild:
    """A started process. `exit_fd` becomes readable when it has ended; `collect` then gives its exit code."""

    def __init__(self, pid: int, lock: threading.Lock) -> None:
        self.pid = pid
        self.code: int | None = None
        self.cpu_seconds = 0.0  # known once it has ended
        self.exit_fd = _exit_descriptor(pid)
        self._lock = lock
        self._closed = False

    def collect(self) -> int:
        """Waits for the end. A signal n reads as 128 + n, as in a shell."""
        with self._lock:
            self.reap()
            if not self._closed:
                self._closed = True
                os.close(self.exit_fd)
        assert self.code is not None
        return self.code

    def reap(self) -> None:
        """The same with the lock held, and with the descriptor left open for who waits on it."""
        if self.code is None:
            _, status, usage = os.wait4(self.pid, 0)
            self.cpu_seconds = usage.ru_utime + usage.ru_stime
            self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

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


def send_signal(pid: int, number: int) -> None:
    """A process that is gone, or another user's, gets none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_all(found: Callable[[], Iterable[int]]) -> set[int]:
    """Kills what is found, once nothing new is found beside the frozen: a process that forks cannot flee."""
    frozen: set[int] = set()
    try:
        for _ in range(FREEZE_PASSES):
            before = len(frozen)
            for pid in found():  # each is frozen before the next one is looked for
                if pid not in frozen:
                    send_signal(pid, signal.SIGSTOP)
                    frozen.add(pid)
            if len(frozen) == before:
                break
    finally:  # also where a look failed, for want of a descriptor: nobody else would continue the frozen
        for pid in frozen:
            send_signal(pid, signal.SIGKILL)
    return frozen


class Sacrifice:
    """When memory runs out, the kernel is to end what was started within this before the process that started it."""

    def __init__(self) -> None:
        """While the process is not hidden yet: then it could not open its own file any more."""
        self._file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._file, 16)

    def __enter__(self) -> None:
        os.pwrite(self._file, b"1000", 0)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._file, self._own, 0)


class Children:
    """Starts processes, and reaps those whose parents died before them where that is this process's task."""

    def __init__(self, sacrifice: Sacrifice, entry: EnteredSandbox | None) -> None:
        self._sacrifice = sacrifice
        self._entry = entry
        self._lock = threading.Lock()  # no process is reaped between its start and its place in the table
        self._alive: dict[int, StartedChild] = {}
        self._born = threading.Event()

    def start(
        self,
        argv: list[str],
        stdio: tuple[int, int, int],
        *,
        env: dict[str, str],
        cwd: str,
        limits: dict[str, int],
        terminal: bool = False,
        keep: tuple[int, ...] = (),
    ) -> StartedChild:
        """Starts a program in a session of its own, with `stdio` as its descriptors 0 to 2.

        Raises the `OSError` of the exec. `keep` descriptors are inherited under their own numbers.
        """
        errors, errors_in = os.pipe()
        options = {"env": env, "cwd": cwd, "limits": limits, "terminal": terminal, "keep": keep}
        try:
            with self._lock:
                with self._sacrifice:
                    pid = os.fork() if self._entry is None else self._entry.fork()
                    if pid == 0:
                        _become(argv, stdio, errors_in, self._entry, options)
                child = self._alive[pid] = StartedChild(pid, self._lock)
        except BaseException:
            os.close(errors)
            raise
        finally:
            os.close(errors_in)
        self._born.set()
        with os.fdopen(errors, "rb") as stream:
            failure = stream.read()
        if failure:
            self.forget(child)
            raise OSError(int(failure), os.strerror(int(failure)), argv[0])
        return child

    def is_full(self, limits: dict[str, int]) -> bool:
        """True if a process under these limits could start no other one now.

        Only trying it tells: the kernel also counts what belongs to the user namespace and cannot be seen from here.
        """
        try:
            return self.forget(self._fork(lambda: _try_to_fork(self._entry, limits))) != 0
        except OSError:
            return True

    def status_of_one(self) -> str:
        """The file `status` that a child reads of itself in its /proc. Raises `OSError`."""
        reader, writer = os.pipe()
        with os.fdopen(reader) as stream:
            try:
                child = self._fork(lambda: _show_status(self._entry, writer))
            finally:
                os.close(writer)
            status = stream.read()
        self.forget(child)
        return status

    def _fork(self, become: Callable[[], None]) -> StartedChild:
        """A child that calls a function, which must not return."""
        with self._lock:
            pid = os.fork() if self._entry is None else self._entry.fork()
            if pid == 0:
                become()
            child = self._alive[pid] = StartedChild(pid, self._lock)
        return child

    def pids(self) -> set[int]:
        """Processes that were started and are not forgotten yet."""
        with self._lock:
            return set(self._alive)

    def forget(self, child: StartedChild) -> int:
        """Takes a child that has ended, or is about to, out of the table; its exit code."""
        code = child.collect()
        with self._lock:
            self._alive.pop(child.pid, None)
        return code

    def reap(self) -> None:
        """Reaps whatever ends, orphans that come to process 1 and children that nobody asks about. Never returns."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                self._born.wait()
                self._born.clear()
                continue
            with self._lock, contextlib.suppress(ChildProcessError):
                child = self._alive.get(ended.si_pid) if ended is not None else None
                if child is not None:
                    child.reap()
                elif ended is not None:
                    os.waitpid(ended.si_pid, 0)


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """As `os.execvpe`, which would import a module first: where it may not be seen, or is no longer the image's own.

    Raises `OSError`.
    """
    missing: OSError | None = None
    refused: OSError | None = None
    for directory in [""] if "/" in argv[0] else env.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(directory, argv[0]), argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError) as error:  # noqa: PERF203
            missing = error
        except OSError as error:
            refused = refused or error
    raise refused or missing or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])


def _try_to_fork(entry: EnteredSandbox | None, limits: dict[str, int]) -> None:
    """Never returns."""
    try:
        if entry is not None:
            entry.shed()
        limit(limits)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        os._exit(0)
    finally:
        os._exit(1)


def _show_status(entry: EnteredSandbox | None, writer: int) -> None:
    """Never returns."""
    try:
        if entry is not None:
            entry.shed()
        with open("/proc/self/status", "rb") as stream:
            os.write(writer, stream.read())
    finally:
        os._exit(0)


def _become(
    argv: list[str], stdio: tuple[int, int, int], errors_in: int, entry: EnteredSandbox | None, options: dict[str, Any]
) -> None:
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
        if entry is not None:
            entry.shed()
        with contextlib.suppress(OSError):
            os.chdir(options["cwd"])
        limit(options["limits"])
        execute(argv, options["env"])
    except OSError as error:
        os.write(errors_in, b"%d" % (error.errno or 1))
    except BaseException:
        os.write(errors_in, b"1")
    finally:
        os._exit(127)
