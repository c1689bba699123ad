"""Attacks on the server beside us, on other processes and on files of the host."""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import socket
import struct
import sys
from typing import Any

from sandbox.attack.inside.tools import Contained, system_call

SEIZE, DETACH = 0x4206, 17
SERVER = 1


def ptrace_server() -> str:
    system_call("ptrace", SEIZE, SERVER, 0, 0)
    return "traces the server"


def memory_of_server() -> str:
    with open(f"/proc/{SERVER}/maps") as stream:
        start = int(next(line for line in stream if " r" in line).split("-")[0], 16)
    with open(f"/proc/{SERVER}/mem", "rb") as memory:
        memory.seek(start)
        memory.read(16)
    return "reads the server's memory"


def vm_readv_server() -> str:
    buffer = ctypes.create_string_buffer(16)
    here = struct.pack("@PN", ctypes.addressof(buffer), 16)
    own = open("/proc/self/maps").readline()  # noqa: SIM115 - the process ends
    there = struct.pack("@PN", int(own.split("-")[0], 16), 16)
    try:
        system_call("process_vm_readv", SERVER, here, 1, there, 1, 0)
    except OSError as error:
        if error.errno != 14:  # EFAULT: an address that is not there, behind the question of rights
            raise
    return "may read the server's memory"


def environment_of_server() -> str:
    with open(f"/proc/{SERVER}/environ", "rb") as stream:
        return f"reads {len(stream.read())} bytes of the server's environment"


def root_of_server() -> str:
    os.listdir(f"/proc/{SERVER}/root")
    return "enters the server's root directory"


def descriptor_of_server() -> str:
    return f"sees the server's {len(os.listdir(f'/proc/{SERVER}/fd'))} descriptors"


def proc_entries(facts: dict[str, Any]) -> str:
    """Files and directories of /proc that have anything in them."""
    found = []
    for path in facts["entries"]:
        try:
            if os.path.isdir(path):
                full = bool(os.listdir(path))
            else:
                with open(path, "rb") as stream:
                    full = bool(stream.read(1))
        except OSError:
            continue
        found += [path] if full else []
    if not found:
        raise Contained("empty or absent")
    return "reads " + ", ".join(found)


def host_file(facts: dict[str, Any]) -> str:
    with open(facts["file"]) as stream:
        if stream.read() != facts["canary"]:
            raise Contained("another file")
    return "reads a file of the host"


def host_tmp(facts: dict[str, Any]) -> str:
    os.stat(f"/tmp/{facts['canary']}")
    return "sees the host's /tmp"


def host_shared_memory(facts: dict[str, Any]) -> str:
    os.stat(f"/dev/shm/{facts['canary']}")
    return "sees the host's /dev/shm"


def _marked(facts: dict[str, Any]) -> int:
    """The host's process that has the canary in its command line."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        pid = int(path.split("/")[2])
        try:
            with open(path, "rb") as stream:
                if facts["process"].encode() in stream.read() and pid not in {os.getpid(), os.getppid()}:
                    return pid
        except OSError:
            continue
    raise Contained("not in sight")


def host_process(facts: dict[str, Any]) -> str:
    return f"sees process {_marked(facts)} of the host"


def host_signal(facts: dict[str, Any]) -> str:
    os.kill(int(facts["pid"]), 0)
    if _marked(facts) != int(facts["pid"]):
        raise Contained("another process has that number")
    return "may signal a process of the host"


def environment(facts: dict[str, Any]) -> str:
    """Of any process that can be read."""
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as stream:
                if facts["secret"].encode() in stream.read():
                    return f"finds the worker's variable in {path}"
        except OSError:
            continue
    raise Contained("the worker's variable is in no environment")


def host_loopback(facts: dict[str, Any]) -> str:
    socket.create_connection(("127.0.0.1", int(facts["port"])), 5).close()
    return "connects to a server of the host"


def _connects(address: str) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(5)
        made.connect(address)
    return "connects to a socket of the host"


def host_abstract_socket(facts: dict[str, Any]) -> str:
    return _connects("\0" + facts["canary"])


def host_socket(facts: dict[str, Any]) -> str:
    return _connects(facts["socket_path"])


def _sleeps(facts: dict[str, Any]) -> None:
    """Never returns. It must not hold the descriptors of whoever waits for this program."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", facts["left"]])  # noqa: S606


def leave_background(facts: dict[str, Any]) -> str:
    if os.fork() == 0:
        _sleeps(facts)
    return "left a child"


def leave_session(facts: dict[str, Any]) -> str:
    if os.fork() == 0:
        os.setsid()
        _sleeps(facts)
    return "left a child in a session of its own"


def leave_orphan(facts: dict[str, Any]) -> str:
    if os.fork() == 0:
        os.setsid()
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        if os.fork() == 0:
            _sleeps(facts)
        os._exit(0)
    os.wait()
    return "left a grandchild that ignores signals"


def leave_files(facts: dict[str, Any]) -> str:
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        with open(f"{place}/{facts['left']}", "w"):
            pass
    return "left files"
