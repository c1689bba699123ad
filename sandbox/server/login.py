"""A person's shell in a sandbox, on a pseudo-terminal of the host. `sandbox.login` starts it and relays the terminal.

--login PID LIMITED GROUPS [UID GID]: PID is a process of the sandbox's own namespaces, LIMITED the one whose resource
limits the shell gets, GROUPS the directories of control groups, one a line. Standard input is the terminal, the
environment is the shell's.

It is three processes. This one waits outside. A keeper inside, a child of the sandbox's first process like all that
runs there, adopts whatever the shell starts, and ends it with the shell or the terminal. The third is the shell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import termios

from sandbox.server.children import LIMITS, RESET_SIGNALS
from sandbox.server.daemon import become_user, kill_descendants
from sandbox.server.entry import EnteredSandbox
from sandbox.server.libc import CHILD_SUBREAPER, hide_from_tracers, prctl
from sandbox.server.sealing.seal import join_own_keyring

SHELLS = ("/bin/bash", "/bin/sh")
WORKING_DIRECTORY = "/workspace"
CANNOT_LOG_IN = 126
KEEPER_GONE = 128 + signal.SIGKILL
HUNG_UP = 128 + signal.SIGHUP


def login(arguments: list[str]) -> int:
    """Returns the shell's exit code; a signal n reads as 128 + n."""
    pid, limited = int(arguments[0]), int(arguments[1])
    try:
        _give_terminal_up()
        for group in arguments[2].splitlines():
            _join_group(group)
        become_user([int(argument) for argument in arguments[3:]])
        limits = _limits_of(limited)
        join_own_keyring()
        entry = EnteredSandbox(pid, sealed=True)
        hide_from_tracers()
        return _log_in(entry, limits)
    except OSError as error:
        _tell(f"cannot enter the sandbox: {error.strerror} ({error.filename or 'login'})")
        return CANNOT_LOG_IN


def _give_terminal_up() -> None:
    """A terminal controls one session, and that is to be the shell's."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the next line sends
    fcntl.ioctl(0, termios.TIOCNOTTY)


def _join_group(group: str) -> None:
    try:
        with open(os.path.join(group, "cgroup.procs"), "w") as stream:
            stream.write("0")
    except OSError as error:
        _tell(f"this shell does not count against the control group {group}: {error.strerror}")


def _limits_of(pid: int) -> dict[int, tuple[int, int]]:
    return {kind: resource.prlimit(pid, kind) for _, kind in LIMITS}


def _log_in(entry: EnteredSandbox, limits: dict[int, tuple[int, int]]) -> int:
    told, telling = os.pipe()
    born = entry.fork()
    if born == 0:
        if os.fork() == 0:  # an orphan of the sandbox belongs to its first process
            _keep_shell(entry, limits, telling)
        os._exit(0)
    os.waitpid(born, 0)  # or the sandbox could not end before this process
    os.close(telling)
    answer = os.read(told, 1)
    return answer[0] if answer else KEEPER_GONE


def _keep_shell(entry: EnteredSandbox, limits: dict[int, tuple[int, int]], telling: int) -> None:
    """The keeper. Never returns."""
    code = CANNOT_LOG_IN
    try:
        entry.shed()
        prctl(CHILD_SUBREAPER, 1)
        deaths = _watch_deaths()
        shell = os.fork()
        if shell == 0:
            _become_shell(limits)
        code = _follow_shell(shell, deaths)
        kill_descendants()
    except OSError as error:
        _tell(f"no shell can be started in the sandbox: {error.strerror}")
    finally:
        os.write(telling, bytes([code]))
        os._exit(0)


def _watch_deaths() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _follow_shell(shell: int, deaths: int) -> int:
    """Reaps until the shell has ended, or the terminal is gone; the exit code."""
    poll = select.poll()
    poll.register(0, 0)  # that is: tell when it hangs up
    poll.register(deaths, select.POLLIN)
    while True:
        if any(descriptor == 0 for descriptor, _ in poll.poll()):
            return HUNG_UP
        os.read(deaths, 4096)
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid not in (0, shell):
            pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == shell:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _become_shell(limits: dict[int, tuple[int, int]]) -> None:
    """Never returns."""
    try:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (*RESET_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for kind, values in limits.items():
            with contextlib.suppress(ValueError):  # the person's own are lower
                resource.setrlimit(kind, values)
        with contextlib.suppress(OSError):
            os.chdir(WORKING_DIRECTORY)
        for shell in SHELLS:
            with contextlib.suppress(FileNotFoundError):
                os.execv(shell, [shell])  # noqa: S606
        _tell("its image has neither /bin/bash nor /bin/sh")
    except OSError as error:
        _tell(f"no shell can be started in the sandbox: {error.strerror}")
    finally:
        os._exit(CANNOT_LOG_IN)


def _tell(text: str) -> None:
    os.write(2, f"sandbox: {text}\r\n".encode())
