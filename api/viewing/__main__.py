"""The program behind `prorl-mq view`: serves the page over files on loopback, or writes it with them."""

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn

from api.viewing.bundle import bundle
from api.viewing.server import viewer
from api.viewing.sources import source_of
from prorl_mq.archive.table import ArchiveDamaged
from prorl_mq.errors import ConfigurationError

HOST = "127.0.0.1"


def main() -> int:
    """Exit codes: 0 ended by Ctrl-C or written, 2 for what cannot be shown."""
    path, port, *out = sys.argv[1:]  # as `prorl-mq view` hands them over
    try:
        source = source_of(Path(path))
        if out:
            print(bundle(source, Path(out[0])), flush=True)
            return 0
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, int(port)))
                sock.listen()  # so that the address works as soon as it is told
            except OSError as error:
                raise ConfigurationError(f"port {port} cannot be listened on: {error.strerror}") from None
            print(f"{path} is at http://{HOST}:{sock.getsockname()[1]}/ui/ until Ctrl-C", flush=True)
            config = uvicorn.Config(viewer(source), log_level="warning", access_log=False, server_header=False)
            asyncio.run(uvicorn.Server(config).serve([sock]))
    except (ConfigurationError, ArchiveDamaged) as error:
        print(f"prorl-mq view: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
