"""Stands in for a backend over several nodes: the first one is healthy while all others are connected to it."""

import http.server
import socket
import sys
import threading
from typing import NoReturn


class Health(http.server.BaseHTTPRequestHandler):
    """Answers everything well."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def first(host: str, port: int, master_port: int, nodes: int) -> NoReturn:
    """Serves when every other node is there, and fails with any of them."""
    with socket.create_server((host, master_port)) as door:
        others = [door.accept()[0] for _ in range(nodes - 1)]
    server = http.server.ThreadingHTTPServer((host, port), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for other in others:
        other.recv(1)
    sys.exit("a node has gone")


def joining(host: str, master_port: int) -> NoReturn:
    while True:
        try:
            with socket.create_connection((host, master_port)) as link:
                link.recv(1)
            sys.exit("the first node has gone")
        except ConnectionRefusedError:
            continue


if __name__ == "__main__":
    host, port, master_port, rank, nodes = sys.argv[1], *map(int, sys.argv[2:])
    first(host, port, master_port, nodes) if rank == 0 else joining(host, master_port)
