"""Runs a harness inside a sandbox. The text of this file is what runs there: standard library only.

It forwards a loopback port to the Unix socket behind the sandbox's door, for clients that know only TCP, and starts the
harness with that address in its environment. Standard input holds one JSON object. The exit code is the harness's.
"""

from __future__ import annotations  # Python 3.8 may run this

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading


def forward(source: socket.socket, target: socket.socket) -> None:
    """Bytes one way, until they end."""
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # a `close` alone wakes no thread that reads, and the peer would never learn of it
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def serve(listener: socket.socket, path: str) -> None:
    """Joins each connection with one of its own to the socket."""
    while True:
        try:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(path)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=forward, args=ends, daemon=True).start()
            except (OSError, RuntimeError):  # nobody listens now, or there may be no more threads
                client.close()
                server.close()
        except OSError:  # no more files, for now
            continue


def main() -> None:
    """The harness, from start to end."""
    given = json.loads(sys.stdin.buffer.readline())
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=serve, args=(listener, given["socket"]), daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    fill = {"{address}": address, **given["fill"]}

    def filled(text: str) -> str:
        for name, value in fill.items():
            text = text.replace(name, value)
        return text.replace("{task}", given["task"])  # last: a task may spell the other names

    environment = {**os.environ, **{name: filled(value) for name, value in given["environment"].items()}}
    argv = [filled(word) for word in given["argv"]]
    done = subprocess.run(argv, cwd=given["workdir"], env=environment, stdin=subprocess.DEVNULL, check=False)
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


if __name__ == "__main__":
    main()
