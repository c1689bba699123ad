"""Machines of their own for servers and clients: network namespaces on one switch, whose links are cut one way or both.

A cut link is silent, as a broken switch is: packets go to an address of the link layer that nobody has. So the kernels
on both sides repeat what was under way, and connections live on when the link is back.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T")
NOBODY: Final = "02:00:00:00:00:01"
CLONE_NEWNET: Final = 0x40000000  # setns(2)


class Network:
    """A switch, this process's own namespace as one of its machines, and the machines that are added by name."""

    def __init__(self) -> None:
        self._prefix = f"pq{os.getpid()}"
        self._ours = f"{self._prefix}o"
        self._net = f"10.213.{os.getpid() % 250}"
        self._switch = f"{self._prefix}s"
        self.hosts: dict[str, str] = {}  # machine → address

    def add(self, name: str) -> str:
        """A machine; its address."""
        machine, port = self.namespace(name), f"{self._prefix}p{len(self.hosts)}"
        address = f"{self._net}.{len(self.hosts) + 1}"
        _ip("netns", "add", machine)
        self.hosts[name] = address
        _ip("link", "add", port, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", machine)
        _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
        _ip("-n", machine, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", machine, "link", "set", device, "up")
        return address

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Nothing that a sender sends reaches a receiver any more. What comes the other way does."""
        for sender, receiver in product(senders, tuple(receivers)):
            self._neighbour(sender, receiver, "replace", "lladdr", NOBODY, "nud", "permanent")

    def part(self, here: Iterable[str], there: Iterable[str]) -> None:
        """Nothing passes between two sides."""
        here, there = tuple(here), tuple(there)
        self.cut(here, there)
        self.cut(there, here)

    def heal(self) -> None:
        """Everything passes."""
        for sender, receiver in product(self.hosts, self.hosts):
            if sender != receiver:
                self._neighbour(sender, receiver, "replace", "lladdr", NOBODY, "nud", "permanent")
                self._neighbour(sender, receiver, "del")

    def _neighbour(self, sender: str, receiver: str, verb: str, *words: str) -> None:
        _ip("-n", self.namespace(sender), "neigh", verb, self.hosts[receiver], *words, "dev", "eth0")

    async def within(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Runs work in a loop and a thread of its own, whose connections begin at a machine."""

        def run() -> T:
            with _inside(Path("/run/netns") / self.namespace(name)):
                return asyncio.run(_of(work))

        return await asyncio.to_thread(run)

    def start(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        _ip("link", "add", self._ours, "type", "veth", "peer", "name", "ours", "netns", self._switch)
        _ip("-n", self._switch, "link", "set", "ours", "master", "switch", "up")
        _ip("address", "add", f"{self._net}.254/24", "dev", self._ours)
        _ip("link", "set", self._ours, "up")

    def stop(self) -> None:
        """Links end with their namespaces, some time later: not this one, whose name is in the machine's own."""
        subprocess.run(["ip", "link", "del", self._ours], check=False, capture_output=True)
        for name in (self._switch, *map(self.namespace, self.hosts)):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Skips the test, with the reason, where no network namespaces can be made."""
    if lacking := missing():
        pytest.skip(f"partitions need network namespaces: {lacking}")
    made = Network()
    try:
        made.start()
        yield made
    finally:
        made.stop()


def missing() -> str:
    """Why network namespaces cannot be made here, and what to do; empty if they can."""
    if shutil.which("ip") is None:
        return "there is no command ip: install iproute2"
    name = f"pq{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if made.returncode:
        return f"`ip netns add` says {made.stderr.strip()!r}: run this as root, where the container allows it"
    added = ["ip", "-n", name, "link", "add", "switch", "type", "bridge"]
    bridge = subprocess.run(added, check=False, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], check=True, capture_output=True)
    return f"`ip link add type bridge` says {bridge.stderr.strip()!r}" if bridge.returncode else ""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def _inside(namespace: Path) -> Iterator[None]:
    """This thread's sockets, and those of threads that it starts, are of another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before, namespace.open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
        try:
            yield
        finally:
            libc.setns(before.fileno(), CLONE_NEWNET)


async def _of(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
