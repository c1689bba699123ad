"""Attacks on the protocol between a sandbox and its host: whatever is sent, the next command is answered rightly.

Each returns what it has achieved; an empty text: nothing.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from sandbox.errors import SandboxError
from sandbox.lifetime import client, wire
from sandbox.protocol import Sandbox, SandboxLimits

PATIENCE_S: Final = 30.0  # for the answers behind an attack, on a busy machine
CONTROL_S: Final = 2.0  # the same where an attack is to silence the server
SILENCING: Final = ("half_frame", "oversize_frame")  # achieve that nothing is answered any more
# What ends a command, guessed, to its terminal and to all that bash has open besides.
FORGED = (
    r"""for n in {0..99}; do printf '\036%s\036' $n; printf '%s;0\n' $n; done; printf '\033[2J\007'; """
    r"""for fd in {3..40}; do [[ -e /proc/$$/fd/$fd ]] && for n in {0..99}; do printf '%s;0\n' $n >&$fd; done; """
    "done 2>&-; sleep 0.2; false"
)
SIGNALS = "for n in {1..64}; do kill -$n $(seq 1 $(($$ - 1))) 2>&-; done; kill -STOP 1; kill -9 1"  # older ones, and 1


async def _answers(sandbox: Sandbox) -> str:
    await sandbox.bash("true")  # the shell may be dying yet
    result = await sandbox.bash("echo on", timeout_s=10)
    return "" if (result.output, result.exit_code) == ("on\n", 0) else f"the next command gives {result}"


async def second_configure(sandbox: Sandbox) -> str:
    settings = client.Settings(
        cwd="/", env={"ATTACK": "on"}, limits=client.held_limits(SandboxLimits()), output_bytes=1 << 20
    )
    request = {"op": "configure", **msgspec.to_builtins(settings)}
    with contextlib.suppress(SandboxError):
        await wire.call(sandbox.handle, request, timeout_s=10)
    result = await sandbox.run(["sh", "-c", "pwd; echo $ATTACK"])
    return "the sandbox has other settings" if result.stdout == b"/\non\n" else await _answers(sandbox)


async def _sent(sandbox: Sandbox, data: bytes) -> str:
    """And the connection stays open."""
    async with wire.WireConnection(sandbox.handle) as connection:
        await connection.send(data)
        return await _answers(sandbox)


async def half_frame(sandbox: Sandbox) -> str:
    return await _sent(sandbox, wire.LENGTHS.pack(100, 100) + b'{"op": "ba')


async def oversize_frame(sandbox: Sandbox) -> str:
    return await _sent(sandbox, wire.LENGTHS.pack(2**32 - 1, 2**32 - 1))


async def end_mark_forgery(sandbox: Sandbox) -> str:
    result = await sandbox.bash(FORGED, timeout_s=20)
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


async def carried_out(program: str, sandbox: Sandbox) -> str:
    """Carries one out, and says what it achieved: a lost server is among it."""
    try:
        return await PROGRAMS[program](sandbox)
    except SandboxError as error:
        return f"the server is lost: {error}"
