"""The filter of system calls as the kernel takes it: a program of classic BPF, without a library.

Each instruction is 8 bytes. The program reads `struct seccomp_data`: the call's number at 0, the architecture at 4, the
lower half of argument n at 16 + 8n. What no rule names is allowed.
"""

from __future__ import annotations

import errno
import functools
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Tuple

    Instruction = Tuple[int, int, int, int]  # code, jump if true, jump if false, operand

from sandbox.server.sealing.calls import FORBIDDEN, JUDGED, MISSING, UNKNOWN, numbers

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT, ARGUMENT_BYTES = 0, 4, 16, 8
LOAD, EQUAL, AT_LEAST, MORE, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
SUCCEED = ERRNO  # without doing anything
NEW_NAMESPACES = 0x7E020000  # all that `clone` knows
NEW_TIME = 0x80  # one that only `unshare` knows: for `clone` these bits are a signal
PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)  # 0x40000: addresses are not random, for debuggers
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
SET_DUMPABLE = 4
FAMILIES = (1, 2, 10)  # UNIX, INET, INET6
STREAMS = (0x1, 0x801, 0x80001, 0x80801)  # SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC or without
NETLINK, ROUTE = 16, 0  # `if_nameindex`, `ip` and Go need it


def _load_argument(at: int) -> Instruction:
    return LOAD, 0, 0, ARGUMENTS_AT + ARGUMENT_BYTES * at


def _end(action: int) -> Instruction:
    return RETURN, 0, 0, action


def _one_of(argument: int, values: tuple[int, ...], then: int, otherwise: int) -> list[Instruction]:
    tests = [(EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [_load_argument(argument), *tests, _end(otherwise), _end(then)]


def _without(flags: int) -> list[Instruction]:
    return [_load_argument(0), (ANY_BIT, 0, 1, flags), _end(ERRNO | errno.EPERM), _end(ALLOW)]


def _family() -> list[Instruction]:
    netlink = _one_of(2, (ROUTE,), ALLOW, ERRNO | errno.EAFNOSUPPORT)
    others = _one_of(0, FAMILIES, ALLOW, ERRNO | errno.EAFNOSUPPORT)
    return [_load_argument(0), (EQUAL, 0, len(netlink), NETLINK), *netlink, *others]


def _dumpable() -> list[Instruction]:
    """A process that hides its memory hides it from the watchdog, too."""
    hide = _one_of(1, (0,), SUCCEED, ALLOW)
    return [_load_argument(0), (EQUAL, 0, len(hide), SET_DUMPABLE), *hide, _end(ALLOW)]


def _judged(machine: str, sockets: bool) -> list[Instruction]:
    """Rules of calls that depend on arguments. An end of a datagram pair could be connected to another socket."""
    no_family = ERRNO | errno.EAFNOSUPPORT
    rules = {
        "clone": _without(NEW_NAMESPACES),
        "unshare": _without(NEW_NAMESPACES | NEW_TIME),
        "personality": _one_of(0, PERSONALITIES, ALLOW, ERRNO | errno.EPERM),
        "ioctl": _one_of(1, TERMINAL_INPUT, ERRNO | errno.EPERM, ALLOW),
        "prctl": _dumpable(),
        "socket": _family() if sockets else [_end(no_family)],
        "socketpair": _family() if sockets else _one_of(1, STREAMS, ALLOW, no_family),
    }
    made: list[Instruction] = []
    for name, number in numbers(JUDGED, machine).items():
        made += [(EQUAL, 0, len(rules[name]), number), *rules[name]]
    return made


def _refused(table: dict[str, int], action: int) -> list[Instruction]:
    """One rule for each run of numbers."""
    made: list[Instruction] = []
    left = sorted(table.values())
    while left:
        first = last = left.pop(0)
        while left and left[0] == last + 1:
            last = left.pop(0)
        if first == last:
            made += [(EQUAL, 0, 1, first), _end(action)]
        else:
            made += [(AT_LEAST, 0, 2, first), (MORE, 1, 0, last), _end(action)]
    return made


@functools.lru_cache(maxsize=None)
def program(machine: str, sockets: bool = True) -> bytes:
    """The filter for an architecture; without `sockets`, none can be made but a pair whose ends are connected for good.

    Raises `ValueError` if its numbers are not known. Calls of another architecture (a 32-bit program's) have other
    numbers: who makes one is killed.
    """
    made = [(LOAD, 0, 0, ARCHITECTURE_AT)]
    missing, forbidden = numbers(MISSING, machine), numbers(FORBIDDEN, machine)
    made += [(EQUAL, 1, 0, ARCHITECTURES[machine]), _end(KILL), (LOAD, 0, 0, NUMBER_AT)]
    made += [(AT_LEAST, 0, 1, UNKNOWN), _end(ERRNO | errno.ENOSYS)]  # x32's are among these
    made += _judged(machine, sockets)
    made += _refused(missing, ERRNO | errno.ENOSYS)
    made += _refused(forbidden, ERRNO | errno.EPERM)
    made.append(_end(ALLOW))
    return b"".join(struct.pack("<HBBI", code, true, false, operand) for code, true, false, operand in made)
