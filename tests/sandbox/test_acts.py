"""Named acts: what an agent's call does happens once, whatever becomes of the worker that asked for it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Claim, Held, Logged
from prorl_mq.schema.messages import Stage
from prorl_mq.store.payloads.checkpoints import CheckpointArchives
from prorl_mq.store.store import Store
from sandbox.errors import SandboxError, SandboxTaken
from sandbox.lifetime import wire
from sandbox.lifetime.client import attach
from sandbox.protocol import EditorCommand, Sandbox
from tests.sandbox.conftest import EVERYWHERE, WITHOUT_PYTHON
from tests.support.queue import spec
from workers.stages import job_log
from workers.stages.job_log import JobLog
from workers.stages.work import Work

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)]

CLIENT = """
import asyncio, sys
import msgspec
from sandbox.lifetime.client import attach
from sandbox.protocol import SandboxHandle

async def main():
    handle = msgspec.json.decode(sys.argv[1], type=SandboxHandle)
    box = await attach(handle, kind=handle.kind, node=handle.node)
    if sys.argv[3]:
        await box.fence(int(sys.argv[3]), "t" + sys.argv[3])
    print("there", flush=True)
    for place, command in enumerate(sys.argv[4:]):
        try:
            result = await box.named(f"{sys.argv[2]}.{place}").bash(command)
            print(repr(result.output), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)

asyncio.run(main())
"""


class Client:
    """A worker's process, which runs commands as the calls of a turn."""

    def __init__(self, box: Sandbox, turn: int, *commands: str, attempt: str = "") -> None:
        argv = [sys.executable, "-c", CLIENT, msgspec.json.encode(box.handle).decode(), str(turn), attempt, *commands]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert self.line() == "there"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


async def again(box: Sandbox) -> Sandbox:
    """As another process would reach it."""
    return await attach(box.handle, kind=box.handle.kind, node=box.handle.node)


async def output(box: Sandbox, command: str) -> str:
    return (await box.bash(command)).output


async def true_inside(box: Sandbox, condition: str) -> None:
    async with asyncio.timeout(20):
        while (await box.run(["sh", "-c", condition])).exit_code:
            await asyncio.sleep(0.05)


async def begun(box: Sandbox, path: str) -> None:
    await true_inside(box, f"test -e {path}")


async def known(box: Sandbox, act: str) -> None:
    async with asyncio.timeout(20):
        while act not in (await box.fence(0, "t")).begun:
            await asyncio.sleep(0.05)


async def test_a_command_whose_worker_is_killed_runs_on_and_is_run_once(sandbox: Sandbox) -> None:
    command = "touch began; sleep 1.5; echo late >>late; echo done"
    client = await asyncio.to_thread(Client, sandbox, 3, command)
    await begun(sandbox, "began")
    client.end()
    after = await again(sandbox)
    fenced = await after.fence(1, "t1")
    assert (fenced.turn, fenced.begun) == (3, ("3.0/0",))
    result = await after.named("3.0").bash(command)
    assert (result.output, result.exit_code) == ("done\n", 0)
    assert await after.named("3.0").bash(command) == result
    assert await output(after, "cat late") == "late\n"


async def test_who_has_overslept_its_lease_does_nothing_more(sandbox: Sandbox) -> None:
    client = await asyncio.to_thread(Client, sandbox, 0, "touch first", "sleep 1", "touch second", attempt="1")
    assert client.line() == "''"
    client.process.send_signal(signal.SIGSTOP)
    after = await again(sandbox)
    await after.fence(2, "t2")
    client.process.send_signal(signal.SIGCONT)
    told = [client.line(), client.line()]
    client.end()
    assert told in (["''", "SandboxTaken"], ["SandboxTaken", "SandboxTaken"])
    assert await output(after, "ls first second 2>/dev/null") == "first\n"
    for lower in ((1, "t1"), (2, "another"), (0, "t2")):
        with pytest.raises(SandboxTaken, match="another attempt of its job has sandbox"):
            await (await again(sandbox)).fence(*lower)


async def test_nothing_is_done_for_an_attempt_that_another_has_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    stale = await again(sandbox)
    await stale.fence(1, "t1")
    await stale.write_file("file", b"new")
    latest = await again(sandbox)
    await latest.fence(2, "t2")
    edit = EditorCommand(command="create", path="/workspace/file", file_text="x")
    for box in (stale, stale.named("0.0"), sandbox):
        acts: list[Callable[[], Awaitable[object]]] = [
            partial(box.bash, "rm file"),
            partial(box.run, ["rm", "file"]),
            partial(box.edit, edit),
            partial(box.write_file, "file", b"x"),
            partial(box.read_file, "file"),
            partial(box.upload, tmp_path / "file", "file"),
            partial(box.download, "file", tmp_path / "other"),
            box.interrupt,
        ]
        for act in acts:
            with pytest.raises(SandboxTaken):
                await act()
    assert await latest.read_file("file") == b"new"


async def test_what_waited_for_the_shell_is_refused_when_another_attempt_has_followed(sandbox: Sandbox) -> None:
    stale, also = await again(sandbox), await again(sandbox)
    for box in (stale, also):
        await box.fence(1, "t1")
    first = asyncio.create_task(stale.bash("touch began; sleep 1.5"))
    await begun(also, "began")
    waits = asyncio.create_task(also.bash("touch stale"))
    await asyncio.sleep(0.3)
    await (latest := await again(sandbox)).fence(2, "t2")
    await first
    with pytest.raises(SandboxTaken):
        await waits
    assert await output(latest, "ls stale 2>/dev/null") == ""


async def test_an_upload_that_ends_behind_the_fence_changes_nothing(sandbox: Sandbox) -> None:
    latest, mine = await again(sandbox), await again(sandbox)
    await mine.fence(1, "t1")
    async with wire.WireConnection(sandbox.handle) as stale:
        await stale.request({"op": "upload", "path": "file", "mode": 0o644, "size": 6, "fence": "1 t1"})
        await stale.send(b"sta")
        await begun(mine, "file.*.part")
        await latest.fence(2, "t2")
        await latest.write_file("file", b"new")
        await stale.send(b"le!")
        assert (await stale.answer()).header == {"taken": True}
    assert await output(latest, "cat file; ls") == "newfile\n"


async def test_of_two_uploads_of_one_name_the_first_counts(sandbox: Sandbox) -> None:
    one, two = wire.WireConnection(sandbox.handle), wire.WireConnection(sandbox.handle)
    async with one, two:
        for upload, data in ((one, b"o"), (two, b"t")):
            await upload.request({"op": "upload", "act": "0.0/0", "path": "file", "mode": 0o644, "size": 3})
            await upload.send(data)
        await true_inside(sandbox, "test $(ls file.*.part | wc -l) = 2")
        for upload, data in ((one, b"ne"), (two, b"wo")):
            await upload.send(data)
            assert (await upload.answer()).header == {}
    assert await output(sandbox, "cat file; ls") == "onefile\n"


async def test_an_act_that_has_ended_gives_its_result_again(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("uploaded")

    async def acts(box: Sandbox) -> list[Any]:
        call = box.named("0.0")
        seen: list[Any] = [await call.bash("echo x >>all; wc -l <all")]
        seen.append(await call.run(["sh", "-c", "echo y >>all; cat all"]))
        await call.write_file("all", b"")
        seen.append(await call.edit(EditorCommand(command="create", path="/workspace/new", file_text="z")))
        seen.append(await call.ipython("open('cells', 'a').write('x'); open('cells').read()", timeout_s=60))
        await call.upload(tmp_path / "file", "place/file")
        return seen

    first = await acts(sandbox)
    await sandbox.bash("echo more >>all; rm -r place")
    assert await acts(await again(sandbox)) == first
    assert await output(sandbox, "cat all; ls -d place 2>/dev/null; cat cells 2>/dev/null") in ("more\nx", "more\n")
    assert (await sandbox.fence(0, "t")).begun == tuple(f"0.0/{place}" for place in range(6))


async def test_a_failure_is_a_result_too(sandbox: Sandbox) -> None:
    await sandbox.bash("mkdir place")
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            await sandbox.named("0.0").write_file("place", b"x")
        await sandbox.bash("rmdir place 2>/dev/null")


async def test_who_asks_while_it_runs_waits_for_the_same_end(sandbox: Sandbox) -> None:
    other = await again(sandbox)
    command = "sleep 0.7; echo x >>all; wc -l <all"
    results = await asyncio.gather(*(box.named("0.0").bash(command) for box in (sandbox, other, await again(other))))
    assert [result.output.strip() for result in results] == ["1", "1", "1"]
    assert await output(sandbox, "cat all") == "x\n"


async def test_a_later_turn_forgets_the_one_before(sandbox: Sandbox) -> None:
    await sandbox.named("0.0").bash("echo one")
    await sandbox.named("1.0").bash("echo two")
    with pytest.raises(SandboxError, match=r"act 0\.0/0 is over, and its result is no longer kept: turn 1 has begun"):
        await sandbox.named("0.0").bash("echo one")
    assert (await sandbox.fence(0, "t")).begun == ("1.0/0",)


@pytest.mark.parametrize("act", ["bash", "run"])
async def test_a_call_that_is_cancelled_ends_at_once(sandbox: Sandbox, act: str) -> None:
    call = sandbox.named("0.0")
    argument = "touch began; sleep 300" if act == "bash" else ["sh", "-c", "touch began; exec sleep 300"]
    task = asyncio.create_task(getattr(call, act)(argument, timeout_s=600))
    await begun(sandbox, "began")
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    async with asyncio.timeout(15):
        ended = await getattr(sandbox.named("0.0"), act)(argument, timeout_s=600)
        assert ended.exit_code != 0
        assert await output(sandbox.named("0.1"), "sleep 1; echo on") == "on\n"


async def test_a_cancelled_cell_ends_at_once(sandbox: Sandbox, kind: str) -> None:
    cell = "import time; open('began', 'w').close(); time.sleep(300)"
    if kind in WITHOUT_PYTHON:
        assert not (await sandbox.named("0.0").ipython(cell)).ok
        return
    task = asyncio.create_task(sandbox.named("0.0").ipython(cell, timeout_s=600))
    await begun(sandbox, "began")
    task.cancel()
    await asyncio.wait({task})
    async with asyncio.timeout(15):
        ended = await sandbox.named("0.0").ipython(cell, timeout_s=600)
    assert not ended.ok
    assert "KeyboardInterrupt" in ended.output


async def test_a_cancelled_command_that_waits_for_the_shell_is_never_run(sandbox: Sandbox) -> None:
    other = await again(sandbox)
    for box in (sandbox, other):
        await box.fence(0, "t")
    first = asyncio.create_task(sandbox.named("0.0").bash("touch began; sleep 1.5; echo whole"))
    await begun(sandbox, "began")
    waits = asyncio.create_task(other.named("0.1").bash("touch second"))
    await known(sandbox, "0.1/0")
    waits.cancel()
    await asyncio.wait({waits})
    assert (await first).output == "whole\n"
    ended = await sandbox.named("0.1").bash("touch second")
    assert (ended.exit_code, ended.output) == (130, "[cancelled before it began]\n")
    assert await output(sandbox, "ls second 2>/dev/null") == ""


async def test_the_cancel_of_one_program_spares_another(sandbox: Sandbox) -> None:
    argv = ["sh", "-c", "touch began; exec sleep 300"]
    spared = asyncio.create_task(sandbox.named("0.0").run(["sleep", "2"]))
    cancelled = asyncio.create_task((await again(sandbox)).named("0.1").run(argv, timeout_s=600))
    await begun(sandbox, "began")
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert (await spared).exit_code == 0
    async with asyncio.timeout(15):
        assert (await sandbox.named("0.1").run(argv, timeout_s=600)).exit_code == 137


@pytest.mark.parametrize("act", ["bash", "run"])
async def test_a_cancel_that_comes_before_its_act_is_obeyed(sandbox: Sandbox, act: str) -> None:
    """A cancel has a connection of its own, which the server may read first."""
    argument = "touch began" if act == "bash" else ["touch", "began"]
    await wire.call(sandbox.handle, {"op": "stop", "act": "4.0/0"}, timeout_s=5)
    assert (await getattr(sandbox.named("4.0"), act)(argument)).exit_code == 130
    assert (await sandbox.named("4.1").bash("ls began 2>/dev/null; true")).output == ""


async def test_a_cancel_that_comes_too_late_meets_no_other_act(sandbox: Sandbox) -> None:
    result = await sandbox.named("0.0").bash("echo one")
    await wire.call(sandbox.handle, {"op": "stop", "act": "0.0/0"}, timeout_s=5)
    assert await output(sandbox.named("0.1"), "sleep 1; echo two") == "two\n"
    assert await sandbox.named("0.0").bash("echo one") == result


async def test_a_client_that_waits_no_longer_ends_its_act(sandbox: Sandbox) -> None:
    request = {"op": "bash", "act": "0.0/0", "timeout_s": 600, "is_input": False}
    with pytest.raises(SandboxError, match="did not answer 'bash'"):
        await wire.SandboxCalls(sandbox.handle).call(request, b"sleep 300", timeout_s=1.0 - wire.GRACE_S)
    async with asyncio.timeout(15):
        assert (await sandbox.named("0.0").bash("sleep 300", timeout_s=600)).exit_code == 130


async def test_what_a_detached_client_cancels_runs_on(sandbox: Sandbox) -> None:
    command = "touch began; sleep 1; echo whole"
    mine = await again(sandbox)
    task = asyncio.create_task(mine.named("0.0").bash(command))
    await begun(sandbox, "began")
    mine.detach()
    task.cancel()
    await asyncio.wait({task})
    assert await output(sandbox.named("0.0"), command) == "whole\n"


async def test_an_act_without_a_client_costs_no_time(sandbox: Sandbox) -> None:
    """A connection whose other end is closed is always readable: to wait for it would not wait."""
    client = await asyncio.to_thread(Client, sandbox, 0, "touch began; sleep 3")
    await begun(sandbox, "began")
    client.end()
    before = _ticks(sandbox.handle.pid)
    await asyncio.sleep(1.5)
    assert _ticks(sandbox.handle.pid) - before < 0.5 * os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    """CPU time of a process and of all below it, in clock ticks."""
    total = 0
    for path in (Path("/proc") / str(pid) / "task").iterdir():
        total += sum(map(int, (path / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        for child in (path / "children").read_text().split():
            total += _ticks(int(child)) if (Path("/proc") / child).exists() else 0
    return total


async def test_who_takes_a_sandbox_over_learns_how_long_its_calls_have_run(sandbox: Sandbox) -> None:
    """Those that have ended, and the one that runs."""
    first = Client(sandbox, 0, "sleep 0.3", "touch begun; sleep 60")
    await begun(sandbox, "begun")
    first.end()
    early = await sandbox.fence(0, "t")
    assert early.seconds >= 0.3
    await true_inside(sandbox, "sleep 0.2")
    assert (await sandbox.fence(0, "t")).seconds >= early.seconds + 0.2


@pytest.mark.parametrize("named", [True, False])
async def test_of_two_attempts_with_one_entry_and_one_number_the_first_has_the_sandbox(
    sandbox: Sandbox, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Redis has lost that the entry was read. The control takes the attempts' own names out of their fences:
    then the second one's call is answered with what the first one's has said.
    """
    if not named:
        monkeypatch.setattr(job_log, "secrets", SimpleNamespace(token_hex=lambda _: ""))
    held = Held(JobRef("acme:r:g:0"), Token("1-1.2"), EntryId("1-1"), Stage.RUN, None, "default")
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    archives = CheckpointArchives(cast("Store", None))  # no checkpoint is made here
    first, second = await again(sandbox), await again(sandbox)
    await JobLog(work, _unsent, [], archives).enter(first)
    if named:
        with pytest.raises(SandboxTaken, match="another attempt of its job has sandbox"):
            await JobLog(work, _unsent, [], archives).enter(second)
        with pytest.raises(SandboxTaken):
            await second.named("0.0").bash("echo second")
        assert await output(first.named("0.0"), "echo first") == "first\n"
        return
    await JobLog(work, _unsent, [], archives).enter(second)
    assert await output(first.named("0.0"), "echo first") == "first\n"
    assert await output(second.named("0.0"), "echo second") == "first\n"


def _unsent(_: Logged) -> "asyncio.Future[str]":
    raise AssertionError("nothing is logged here")
