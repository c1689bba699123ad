"""Asks the server for its total."""

import socket

with socket.create_connection(("127.0.0.1", 8124), timeout=10) as server:
    server.sendall(b"total\n")
    print(server.makefile().readline().strip())
