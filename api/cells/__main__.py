"""The program behind `prorl-mq router`: serves the cells of a file as one service."""

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn
import uvloop

from api.cells.app import create_app
from api.cells.cell import Cell, load
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.connections import DrainingServer, TimedProtocol, raise_file_limit

DRAIN_S = 20  # how long answers under way may take after SIGTERM


def main() -> int:
    """Exit codes: 0 ended by Ctrl-C or SIGTERM, 2 for a wrong file or address."""
    path, port = sys.argv[1:]  # as `prorl-mq router` hands them over
    try:
        found = load(Path(path))
        cells = [Cell(name, url) for name, url in found.cells.items()]
        with _listening(found.host, int(port)) as sock:
            host = f"[{found.host}]" if ":" in found.host else found.host
            address = f"http://{host}:{sock.getsockname()[1]}"
            print(f"{', '.join(found.cells)} are at {address} until Ctrl-C; page {address}/ui/", flush=True)
            raise_file_limit()
            config = uvicorn.Config(
                create_app(cells, host=found.host), http=TimedProtocol, ws="none", log_level="warning",
                access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=DRAIN_S,
            )  # fmt: skip
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
            asyncio.run(DrainingServer(config).serve([sock]))
    except ConfigurationError as error:
        print(f"prorl-mq router: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ConfigurationError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from None
    return sock


if __name__ == "__main__":
    sys.exit(main())
