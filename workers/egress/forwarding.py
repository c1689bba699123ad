"""Forwards connections to a socket behind a sandbox's door. This text stands in front of the programs that run there:
standard library only.
"""

from __future__ import annotations  # Python 3.8 may run this

import contextlib
import socket
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
        except OSError:  # no more files, for now
            continue
