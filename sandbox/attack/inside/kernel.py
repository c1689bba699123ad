"""Attacks on parts of the kernel that a policy's code needs none of."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import struct
import termios
from typing import Any, Callable

from sandbox.attack.inside.keys import GET_ID, SESSION
from sandbox.attack.inside.tools import LIBC, Contained, number, raw_call, reaches, system_call

NEW_USER, NEW_MOUNTS, NEW_NET, NEW_NAMES = 0x10000000, 0x20000, 0x40000000, 0x4000000
X32 = 0x40000000
ALLOW_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)


def open_call(facts: dict[str, Any]) -> str:
    """Calls whose arguments here are wrong, or do nothing."""
    buffer, own = bytes(128), os.getpid()
    arguments = {
        "io_uring_setup": (1, buffer), "userfaultfd": (1,), "memfd_secret": (0,), "memfd_create": (None, 0),
        "statmount": (None, None, 0, 0),
        "listmount": (None, None, 0, 0), "lsm_list_modules": (None, None, 0), "clone3": (None, 0),
        "mq_open": (b"prorl-attack", os.O_CREAT | os.O_RDWR, 0o600, None), "shmget": (0, 4096, 0o600),
        "msgget": (0, 0o600), "semget": (0, 1, 0o600), "bpf": (0, None, 0), "perf_event_open": (buffer, 0, -1, -1, 0),
        "kexec_load": (0, 0, None, 0), "init_module": (None, 0, None), "syslog": (10, None, 0),
        "fanotify_init": (0x200, 0), "quotactl": (-1, None, 0, None), "open_by_handle_at": (-100, None, 0),
        "kcmp": (own, own, 0, 0, 1), "process_madvise": (-1, None, 0, 0, 0), "vmsplice": (os.pipe()[1], None, 0, 0),
        "modify_ldt": (0, buffer, 16), "remap_file_pages": (0, 0, 0, 0, 0), "mbind": (0, 0, 0, None, 0, 0),
        "set_mempolicy": (0, None, 0), "move_pages": (0, 0, None, None, None, 0), "migrate_pages": (0, 0, None, None),
    }  # fmt: skip
    return reaches(facts["call"], *arguments[facts["call"]])


def x32_number() -> str:
    return f"a call by its x32 number answers {raw_call(X32 | number('getpid'))}"


def int80_number() -> str:
    """A 32-bit call, by other numbers than those that a filter of 64-bit calls looks at."""
    if os.uname().machine != "x86_64":
        raise Contained("a call of x86 alone")
    child = os.fork()
    if child == 0:
        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # getpid by int 0x80
        call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        os._exit(0 if call() == os.getpid() else 1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise Contained(f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    return "a 32-bit call answers"


def filter_undo() -> str:
    """Takes the filter off, or puts one on top that allows everything; then a call that was refused."""
    code = ctypes.create_string_buffer(ALLOW_ALL)
    with contextlib.suppress(OSError):
        system_call("prctl", 22, 0, None)
    with contextlib.suppress(OSError):
        system_call("prctl", 22, 2, struct.pack("@HP", 1, ctypes.addressof(code)))
    system_call("keyctl", GET_ID, SESSION, 0)
    return "keyctl answers"


def _alone(*flags: int) -> None:
    """Namespaces of its own, if that can be, and with them rights over what belongs to these."""
    with contextlib.suppress(OSError):
        system_call("unshare", NEW_USER | sum(flags))


def unshare_user() -> str:
    system_call("unshare", NEW_USER)
    return "has a user namespace, and every right in it"


def unshare_net() -> str:
    system_call("unshare", NEW_USER | NEW_NET)
    return "has a network namespace, and every right in it"


def _born(start: Callable[[], int]) -> str:
    child = start()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a child has a user namespace of its own"


def clone_user() -> str:
    return _born(lambda: system_call("clone", NEW_USER | signal.SIGCHLD, None, None, None, None))


def clone3_user() -> str:
    arguments = struct.pack("<QQQQQQQQ", NEW_USER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    return _born(lambda: system_call("clone3", arguments, len(arguments)))


def mount() -> str:
    _alone(NEW_MOUNTS)
    system_call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
    return "mounted a file system"


def fsopen() -> str:
    _alone(NEW_MOUNTS)
    system_call("fsopen", b"tmpfs", 0)
    return "opened a file system"


def chroot() -> str:
    _alone()
    system_call("chroot", b"/tmp")
    return "has another root directory"


def sethostname() -> str:
    _alone(NEW_NAMES)
    system_call("sethostname", b"attack", 6)
    return "has another host name"


def personality_exec() -> str:
    system_call("personality", 0x400000)
    return "whatever is read can be executed"


def terminal_input() -> str:
    """Types into its own terminal."""
    if os.fork():
        os.wait()
        os._exit(0)  # the child, which leads no session yet, has spoken
    os.setsid()
    terminal = os.openpty()[1]
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    return reaches("ioctl", terminal, termios.TIOCSTI, b"x")


def affinity() -> str:
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    return "chooses its CPUs"


def scheduler() -> str:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return "chooses its scheduler"


def hide_memory() -> str:
    """From whoever counts it."""
    system_call("prctl", 4, 0, 0, 0, 0)
    if system_call("prctl", 3, 0, 0, 0, 0):
        raise Contained("still dumpable")
    return "hides from the watchdog"


def take_descriptor() -> str:
    descriptor = system_call("pidfd_open", os.getpid(), 0)
    system_call("pidfd_getfd", descriptor, 0, 0)
    return "takes descriptors out of processes"


def socket_family(facts: dict[str, Any]) -> str:
    """The kernel makes the socket, or says no more than that its kind is wrong."""
    if facts.get("own_network"):
        _alone(NEW_NET)
    made = int(LIBC.socket(*facts["socket"]))
    error = ctypes.get_errno()
    if made < 0 and error not in {errno.ESOCKTNOSUPPORT, errno.EPROTONOSUPPORT, errno.EINVAL}:
        raise OSError(error, os.strerror(error))
    return "the family is open"
