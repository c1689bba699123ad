"""Attempts that are killed, stopped and followed at random: no act is done twice, and none behind its fence."""

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from sandbox.errors import SandboxTaken
from sandbox.lifetime.client import attach
from sandbox.protocol import EditorCommand, Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["bubblewrap", "local"], indirect=True)]
TURNS, CALLS, ATTEMPTS = 3, 3, 8

ATTEMPT = """
import asyncio, sys, msgspec
from sandbox.protocol import SandboxHandle
from sandbox.lifetime.client import attach
from tests.sandbox.test_acts_at_random import play

async def main():
    handle = msgspec.json.decode(sys.argv[1], type=SandboxHandle)
    box = await attach(handle, kind=handle.kind, node=handle.node)
    await play(box, int(sys.argv[2]), int(sys.argv[3]))

asyncio.run(main())
"""


async def act(box: Sandbox, seed: int, turn: int, place: int) -> str:
    """A call of two acts, each of which leaves a line; the same for every attempt."""
    drawn = random.Random(f"{seed}.{turn}.{place}")
    call = box.named(f"{turn}.{place}")
    line = f"{turn}.{place}"
    command = f"sleep {drawn.choice((0, 0.1, 0.3))}; echo {line} >>lines; wc -l <lines"
    if drawn.random() < 0.5:
        said = (await call.bash(command)).output
    else:
        said = (await call.run(["sh", "-c", command])).stdout.decode()
    await call.write_file(f"file-{line}", said.encode())
    edited = EditorCommand(command="create", path=f"/workspace/made-{line}", file_text=said)
    return said + str((await call.edit(edited)).ok)


async def play(box: Sandbox, seed: int, attempt: int) -> None:
    """One attempt, from the first turn that the sandbox still knows; it prints what each call answered."""
    fenced = await box.fence(attempt, f"t{attempt}")
    print("fenced", flush=True)
    for turn in range(max(0, fenced.turn), TURNS):
        for place in range(CALLS):
            said = await act(box, seed, turn, place)
            print(f"{turn}.{place} {said!r}", flush=True)


async def start(box: Sandbox, seed: int, attempt: int) -> asyncio.subprocess.Process:
    argv = [sys.executable, "-c", ATTEMPT, msgspec.json.encode(box.handle).decode(), str(seed), str(attempt)]
    return await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )


def tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has done all and ended
        process.send_signal(number)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_act_is_done_twice_whatever_becomes_of_its_attempts(sandbox: Sandbox, seed: int) -> None:
    drawn = random.Random(seed)
    asleep: list[asyncio.subprocess.Process] = []
    answers: dict[str, str] = {}

    def heed(printed: bytes) -> None:
        for line in printed.decode().splitlines():
            name, _, said = line.partition(" ")
            if said:
                assert answers.setdefault(name, said) == said

    for attempt in range(1, ATTEMPTS):
        process = await start(sandbox, seed, attempt)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"fenced\n"
        await asyncio.sleep(drawn.uniform(0, 0.5))
        if drawn.random() < 0.5:
            tell(process, signal.SIGSTOP)
            asleep.append(process)
        else:
            tell(process, signal.SIGKILL)
            heed((await process.communicate())[0])
    last = await start(sandbox, seed, ATTEMPTS)
    printed, errors = await last.communicate()
    assert last.returncode == 0, errors.decode()
    heed(printed)
    latest = await attach(sandbox.handle, kind=sandbox.handle.kind, node=sandbox.handle.node)
    await latest.fence(ATTEMPTS, f"t{ATTEMPTS}")
    for process in asleep:
        tell(process, signal.SIGCONT)
        printed, errors = await process.communicate()
        heed(printed)
        assert process.returncode == 0 or SandboxTaken.__name__ in errors.decode()
    wanted = [f"{turn}.{place}" for turn in range(TURNS) for place in range(CALLS)]
    assert (await latest.read_file("lines")).decode().split() == wanted
    assert set(answers) <= set(wanted)
