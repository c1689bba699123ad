"""Attacks on the protocol between a sandbox and its host: whatever is sent, the next command is answered rightly.

Each returns what it has achieved; an empty text: nothing.
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from sandbox.errors import SandboxError
from sandbox.lifetime import client, wire
from sandbox.protocol import Sandbox

FORGED = r"""for n in 0 7 77; do printf '\036%s\036' $n; printf '%s;%s\n' $n 0; done; printf '\033[2J\007'; false"""
SIGNALS = "for n in {1..64}; do kill -$n 1 2>/dev/null; done; kill -STOP 1; kill -9 1"


async def _answers(sandbox: Sandbox) -> str:
    try:
        await sandbox.bash("true")  # the shell may be dying yet
        result = await sandbox.bash("echo on", timeout_s=10)
    except SandboxError as error:
        return f"the server is lost: {error}"
    return "" if (result.output, result.exit_code) == ("on\n", 0) else f"the next command gives {result}"


async def second_configure(sandbox: Sandbox) -> str:
    settings = client.Settings(cwd="/", env={}, limits={}, output_bytes=1)
    request = {"op": "configure", **msgspec.to_builtins(settings)}
    try:
        await wire.call(sandbox.handle, request, timeout_s=10)
    except SandboxError:
        return await _answers(sandbox)
    return "the sandbox has other settings and limits"


async def _sent(sandbox: Sandbox, data: bytes) -> str:
    async with wire.WireConnection(sandbox.handle) as connection:
        await connection.send(data)
    return await _answers(sandbox)


async def half_frame(sandbox: Sandbox) -> str:
    return await _sent(sandbox, wire.LENGTHS.pack(100, 100) + b'{"op": "ba')


async def oversize_frame(sandbox: Sandbox) -> str:
    return await _sent(sandbox, wire.LENGTHS.pack(2**32 - 1, 2**32 - 1))


async def end_mark_forgery(sandbox: Sandbox) -> str:
    result = await sandbox.bash(FORGED, timeout_s=10)
    return f"a failed command ends with {result.exit_code}" if result.exit_code != 1 else await _answers(sandbox)


async def stop_server(sandbox: Sandbox) -> str:
    await sandbox.run(["bash", "-c", SIGNALS], timeout_s=10)
    return await _answers(sandbox)


async def kill_everything(sandbox: Sandbox) -> str:
    await sandbox.run(["bash", "-c", "kill -9 -1"], timeout_s=10)
    return await _answers(sandbox)


PROGRAMS: Mapping[str, Callable[[Sandbox], Awaitable[str]]] = {
    each.__name__: each
    for each in (second_configure, half_frame, oversize_frame, end_mark_forgery, stop_server, kill_everything)
}
