"""A kernel by jupyter_client, without a manager: a directory, ipc or tcp, and the command that starts the kernel.

The command finds the connection file as /mnt/kernel.json; sockets of ipc lie beside it.
"""

import json
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

from jupyter_client import BlockingKernelClient

from bench.sandbox.peer_loop import serve, timed

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
INSIDE = "/mnt"
START_S = 60.0


def free_ports() -> list[int]:
    sockets = [socket.socket() for _ in PORTS]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def connection(transport: str, address: str, ports: list[int], key: str) -> dict[str, object]:
    return {
        "transport": transport, "ip": address, "key": key, "signature_scheme": "hmac-sha256",
        **dict(zip(PORTS, ports, strict=True)),
    }  # fmt: skip


def once() -> None:
    """From the request until the kernel is idle again: its printed output is there by then."""
    reply = client.execute_interactive("1+1", output_hook=lambda _: None, timeout=START_S)
    if reply["content"]["status"] != "ok":
        raise SystemExit(f"1+1 failed: {reply}")


def wait_ready() -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and kernel.poll() is None:
        client.kernel_info()
        try:
            client.get_shell_msg(timeout=0.2)
        except Exception:
            continue
        return
    raise SystemExit("the kernel does not answer")


if __name__ == "__main__":
    directory, transport = Path(sys.argv[1]), sys.argv[2]
    local = transport == "tcp"
    ports, key = free_ports() if local else [1, 2, 3, 4, 5], secrets.token_hex(16)
    inside = connection(transport, "127.0.0.1" if local else f"{INSIDE}/k", ports, key)
    outside = connection(transport, "127.0.0.1" if local else f"{directory}/k", ports, key)
    (directory / "kernel.json").write_text(json.dumps(inside))
    kernel = subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
    client = BlockingKernelClient()
    client.load_connection_info(outside)
    client.start_channels(hb=False)
    wait_ready()
    once()
    serve(lambda count: timed(once, count))
    client.stop_channels()
    kernel.kill()
    kernel.wait()
