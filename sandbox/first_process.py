"""Finds the first process of a sandbox that was just started: the kernel puts the sender's pid on every answer."""

import socket
import struct
from pathlib import Path

from sandbox import label
from sandbox.wire import LENGTHS

CREDENTIALS = struct.Struct("iii")  # pid, user, group: `struct ucred`
PING = b'{"op":"ping"}'


def first_process(directory: Path, timeout_s: float) -> int:
    """Asks the server and waits for its first answer; its parent is process 1 inside. 0: nobody answers. Blocks."""
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
    if not data:
        return 0
    server: int = CREDENTIALS.unpack(ancillary[0][2])[0]
    return parent_of(server)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when there is no such process any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])
