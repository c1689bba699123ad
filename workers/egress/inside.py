"""Forwards a loopback port of a sandbox to the socket behind its door. The text of this file is what runs there:
standard library only. Arguments: the port, the socket's path. Returns once the port is open; a child of it serves.
"""

from __future__ import annotations  # Python 3.8 may run this

import contextlib
import os
import socket
import sys
import threading


def carry(source: socket.socket, target: socket.socket) -> None:
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
                    threading.Thread(target=carry, args=ends, daemon=True).start()
            except (OSError, RuntimeError):  # nobody listens now, or there may be no more threads
                client.close()
                server.close()
        except OSError:
            continue


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        serve(listening, sys.argv[2])
