"""Finds process 1 of a sandbox that was just started."""

import socket
import struct
from pathlib import Path

from sandbox.host import process
from sandbox.lifetime import label
from sandbox.lifetime.wire import LENGTHS

CREDENTIALS = struct.Struct("iii")  # pid, user, group: `struct ucred`
PING = b'{"op":"ping"}'


def first_process(directory: Path, timeout_s: float) -> int:
    """Asks the server, which is process 1, and waits for its first answer: the kernel puts the sender's pid on it.

    0: nobody answers. Blocks.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with label.socket_address(directory) as address:
                connection.connect(address)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            connection.sendall(LENGTHS.pack(len(PING), 0) + PING)
            data, ancillary, _, _ = connection.recvmsg(LENGTHS.size, socket.CMSG_SPACE(CREDENTIALS.size))
        except OSError:
            return 0
    return int(CREDENTIALS.unpack(ancillary[0][2])[0]) if data else 0


def first_below(front: int) -> int:
    """Process 1 of the PID namespace that was made below a process. 0: there is none."""
    return next((pid for pid in process.descendants(front) if _numbers(pid)[1:] == ["1"]), 0)


def _numbers(pid: int) -> list[str]:
    """The process's number in each PID namespace that it belongs to, from this one inwards."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return next((line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:")), [])
