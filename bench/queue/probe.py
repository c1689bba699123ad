"""What the no-op handlers of every system share: where Redis is, the payload, and the marks that finished jobs leave.

It runs inside the libraries' own environments, so it uses the standard library alone.
"""

import os
import socket
import struct
import time
from pathlib import Path

URL = os.environ.get("BENCH_REDIS_URL", "")
SCRATCH = Path(os.environ.get("BENCH_SCRATCH_DIR", "."))
LATENCY_SOCKET = str(SCRATCH / "latency")
PAYLOAD = "x" * int(os.environ.get("BENCH_PAYLOAD_BYTES", "0"))
ELAPSED = struct.Struct("d")

_done = os.open(SCRATCH / "done", os.O_CREAT | os.O_APPEND | os.O_WRONLY) if URL else -1


def done(sent_at: float, payload: str) -> int:
    """The body of the last handler; its result is the length of the payload.

    The size of the file is the count. A job that carries its start time tells the client, over a datagram, how long it
    took to get here: the monotonic clock is one for all processes.
    """
    if sent_at:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(ELAPSED.pack(time.perf_counter() - sent_at), LATENCY_SOCKET)
    os.write(_done, b".")
    return len(payload)
