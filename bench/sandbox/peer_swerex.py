"""SWE-ReX's bash session: `local` in its own process, as inside a container; `remote` through its server over HTTP."""

import asyncio
import secrets
import socket
import subprocess
import sys
import time

from swerex.runtime.abstract import AbstractRuntime, BashAction, CreateBashSessionRequest

from bench.sandbox.peer_loop import serve

START_S = 30.0


async def local() -> AbstractRuntime:
    from swerex.runtime.local import LocalRuntime

    return LocalRuntime()


async def remote() -> AbstractRuntime:
    from swerex.runtime.remote import RemoteRuntime

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    server = [sys.executable, "-m", "swerex.server", "--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
    servers.append(await asyncio.create_subprocess_exec(*server, stdin=subprocess.DEVNULL, stdout=sys.stderr))
    runtime = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token, timeout=START_S)
    deadline = time.monotonic() + START_S
    while not (await runtime.is_alive(timeout=1)).is_alive and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return runtime


async def samples(runtime: AbstractRuntime, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        said = await runtime.run_in_session(BashAction(command="true", timeout=10))
        found.append(time.perf_counter() - began)
        if said.exit_code != 0:
            raise SystemExit(f"true ended with {said.exit_code}")
    return found


if __name__ == "__main__":
    servers: list[asyncio.subprocess.Process] = []
    with asyncio.Runner() as runner:
        session = runner.run({"local": local, "remote": remote}[sys.argv[1]]())
        runner.run(session.create_session(CreateBashSessionRequest()))
        serve(lambda count: runner.run(samples(session, count)))
        for process in servers:
            process.kill()
            runner.run(process.wait())
