"""Forwards a loopback port of a sandbox to the socket behind its door: what runs there, behind `forwarding`'s text.

Arguments: the port, the socket's path. Returns once the port is open; a child of it serves.
"""

import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # there its text stands in front
    from workers.egress.forwarding import serve  # noqa: TC004

if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        serve(listening, sys.argv[2])
