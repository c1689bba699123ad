"""The filter's program, judged by a machine of its own for every call on both architectures."""

import errno
import re
import struct
from pathlib import Path

import pytest

from sandbox.server.sealing.calls import FORBIDDEN, JUDGED, MACHINES, MISSING, UNKNOWN, numbers
from sandbox.server.sealing.filter import ALLOW, ARCHITECTURES, ERRNO, KILL, SUCCEED, program

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
DEFINED = re.compile(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
MISSES, FORBIDS, NO_FAMILY = ERRNO | errno.ENOSYS, ERRNO | errno.EPERM, ERRNO | errno.EAFNOSUPPORT
machines = pytest.mark.parametrize("machine", MACHINES)
JUMPS = {0x15: int.__eq__, 0x35: int.__ge__, 0x25: int.__gt__, 0x45: lambda left, right: bool(left & right)}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None, sockets: bool = True) -> int:
    """The kernel's: instruction after instruction, until one returns."""
    code = list(struct.iter_unpack("<HBBI", program(machine, sockets)))
    words = [each & (1 << 64) - 1 for each in (*arguments, *(0,) * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", number, ARCHITECTURES[machine] if architecture is None else architecture, 0, *words)
    at = accumulator = 0
    while True:
        what, true, false, operand = code[at]
        at += 1
        if what == 0x06:
            return operand
        if what == 0x20:
            accumulator = struct.unpack_from("<I", data, operand)[0]
        else:
            at += true if JUMPS[what](accumulator, operand) else false


def judged(machine: str, name: str, *arguments: int) -> int:
    return verdict(machine, numbers(JUDGED, machine)[name], *arguments)


@machines
def test_each_call_has_the_verdict_of_its_table_and_all_others_are_allowed(machine: str) -> None:
    tables = {**dict.fromkeys(numbers(MISSING, machine).values(), MISSES)}
    tables |= dict.fromkeys(numbers(FORBIDDEN, machine).values(), FORBIDS)
    plain = set(range(UNKNOWN)) - set(numbers(JUDGED, machine).values())
    assert {number: verdict(machine, number) for number in plain} == {
        number: tables.get(number, ALLOW) for number in plain
    }


@machines
def test_what_nobody_has_judged_yet_is_missing(machine: str) -> None:
    assert {verdict(machine, number) for number in (UNKNOWN, 1000, 0x40000000, 0x40000027, -1)} == {MISSES}


@machines
def test_without_sockets_there_are_only_pairs_that_are_connected_for_good(machine: str) -> None:
    def told(name: str, *arguments: int) -> int:
        return verdict(machine, numbers(JUDGED, machine)[name], *arguments, sockets=False)

    assert {told("socket", family, kind) for family in (1, 2, 10, 16, 40) for kind in (1, 2)} == {NO_FAMILY}
    assert {told("socketpair", 1, kind) for kind in (1, 0x801, 0x80001, 0x80801)} == {ALLOW}
    assert {told("socketpair", 1, kind) for kind in (2, 5, 0x80002)} == {NO_FAMILY}


@machines
def test_another_architecture_is_killed(machine: str) -> None:
    assert {verdict(machine, 0, architecture=other) for other in (0, 0x40000003, 0xC00000F3)} == {KILL}


@machines
def test_no_call_makes_namespaces(machine: str) -> None:
    spaces = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    assert {judged(machine, "clone", space | 17) for space in spaces} == {FORBIDS}
    assert {judged(machine, "unshare", space) for space in (*spaces, 0x80)} == {FORBIDS}
    thread, vfork = 0x3D0F00, 0x4111
    assert {judged(machine, "clone", flags) for flags in (17, thread, vfork, 0x1200011)} == {ALLOW}
    assert {judged(machine, "unshare", flags) for flags in (0, 0x200, 0x400)} == {ALLOW}


@machines
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_socket_families_are_an_allow_list(machine: str, name: str) -> None:
    allowed = {family for family in range(64) if judged(machine, name, family, 3, 0) == ALLOW}
    assert allowed == {1, 2, 10, 16}
    assert judged(machine, name, 40) == NO_FAMILY
    assert {protocol for protocol in range(32) if judged(machine, name, 16, 3, protocol) == ALLOW} == {0}
    assert judged(machine, name, 1 << 32 | 40) == NO_FAMILY


@machines
def test_terminals_personalities_and_hiding(machine: str) -> None:
    assert {judged(machine, "ioctl", 0, request) for request in (0x5412, 0x541C, 1 << 32 | 0x5412)} == {FORBIDS}
    assert {judged(machine, "ioctl", 0, request) for request in (0x5401, 0x540E, 0x5413)} == {ALLOW}
    assert judged(machine, "personality", 0x400000) == FORBIDS
    assert {judged(machine, "personality", each) for each in (0, 0x40000, 0xFFFFFFFF)} == {ALLOW}
    assert (judged(machine, "prctl", 4, 0), judged(machine, "prctl", 4, 1)) == (SUCCEED, ALLOW)
    assert {judged(machine, "prctl", option, 0) for option in (1, 15, 22, 38)} == {ALLOW}


@machines
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    """As far as they are on this machine, and as new as they are."""
    if not HEADERS[machine].exists():
        pytest.skip(f"no {HEADERS[machine]} (Debian: linux-libc-dev)")
    known = {name: int(number) for name, number in DEFINED.findall(HEADERS[machine].read_text())}
    for table in (MISSING, FORBIDDEN, JUDGED):
        for name, number in numbers(table, machine).items():
            assert known.get(name, number) == number, name
    names = {row.split()[0] for table in (MISSING, FORBIDDEN, JUDGED) for row in table.split(",")}
    assert len(names & known.keys()) > 80


def test_an_unknown_machine_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="numbers on riscv64 are not known here"):
        program("riscv64")
