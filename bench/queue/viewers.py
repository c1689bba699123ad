"""Viewers of `/v1/watch`: sockets in one process that read what comes and drop it.

python -m bench.queue.viewers ADDRESS COUNT
"""

import selectors
import socket
import sys
from urllib.parse import urlsplit


def main() -> None:
    address, count = urlsplit(sys.argv[1]), int(sys.argv[2])
    selector = selectors.DefaultSelector()
    for _ in range(count):
        viewer = socket.create_connection((address.hostname, address.port))
        viewer.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        if not viewer.recv(1 << 16).startswith(b"HTTP/1.1 200"):
            sys.exit("the service lets nobody watch")
        selector.register(viewer, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(1 << 20):
                selector.unregister(key.fileobj)


if __name__ == "__main__":
    main()
