"""Runs a harness inside a sandbox: what runs there, behind `forwarding`'s text. Standard library only.

It forwards a loopback port to the Unix socket behind the sandbox's door, for clients that know only TCP, and starts the
harness with that address in its environment. Standard input holds one JSON object. The exit code is the harness's.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # there its text stands in front
    from workers.egress.forwarding import serve  # noqa: TC004


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
