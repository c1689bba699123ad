"""Checks of what goes over a server's links: calls that outlast them, fences, files, and saved states."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from sandbox.contract.trial import ContractTrial, expect
from sandbox.errors import SandboxTaken
from sandbox.protocol import Sandbox

BIG_BYTES = (4 << 20) + 7
SOON_S = 15.0


async def until(box: Sandbox, test: str) -> None:
    """Waits until a shell test is true inside."""
    async with asyncio.timeout(SOON_S):
        while (await box.run(["sh", "-c", test])).exit_code != 0:
            await asyncio.sleep(0.05)  # nothing outside tells what happens inside


@contextlib.asynccontextmanager
async def under_way(call: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """A call that is cancelled at the end, whatever the check meets meanwhile."""
    task = asyncio.create_task(call)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def a_named_call_outlasts_its_link(trial: ContractTrial) -> None:
    box = await trial.box()
    command = "echo x >> times; sleep 2; wc -l < times"
    async with under_way(box.named("0.0").bash(command)):
        other = await trial.provider.attach(box.handle)
        await until(other, "test -e times")
        box.detach()
    result = await other.named("0.0").bash(command)
    expect((result.output.strip(), result.exit_code) == ("1", 0), result)


async def an_ended_call_gives_its_result_again(trial: ContractTrial) -> None:
    box = await trial.box()
    results = [await one.named("0.0").bash("echo x >> times; wc -l < times") for one in (box, box)]
    expect(results[0] == results[1] and results[0].output.strip() == "1", results)


async def a_call_without_a_name_ends_with_its_link(trial: ContractTrial) -> None:
    box = await trial.box()
    async with under_way(box.run(["sh", "-c", "touch began; exec sleep 300"], timeout_s=600)):
        other = await trial.provider.attach(box.handle)
        await until(other, "test -e began")
    await until(other, "! pgrep -x sleep")


async def a_cancelled_named_call_is_stopped(trial: ContractTrial) -> None:
    box = await trial.box()
    async with under_way(box.named("0.0").run(["sh", "-c", "touch began; exec sleep 300"], timeout_s=600)):
        await until(await trial.provider.attach(box.handle), "test -e began")
    async with asyncio.timeout(SOON_S):
        ended = await box.named("0.0").run(["sh", "-c", "touch began; exec sleep 300"], timeout_s=600)
    expect(ended.exit_code != 0, ended)


async def calls_at_the_same_time_have_links_of_their_own(trial: ContractTrial) -> None:
    box = await trial.box()
    results = await asyncio.gather(*(box.run(["sh", "-c", f"sleep 0.3; echo {n}"]) for n in range(5)))
    expect([result.stdout for result in results] == [b"%d\n" % n for n in range(5)], results)


async def a_later_attempt_takes_the_sandbox(trial: ContractTrial) -> None:
    box = await trial.box()
    later = await trial.provider.attach(box.handle)
    await box.fence(0, "first")
    await later.fence(1, "second")
    try:
        await box.bash("true")
    except SandboxTaken:
        return
    expect(False, "the earlier attempt still acts")


async def large_files_go_in_and_out(trial: ContractTrial) -> None:
    box, data = await trial.box(), os.urandom(BIG_BYTES)
    with tempfile.TemporaryDirectory(prefix="sandbox-contract-") as directory:
        source, target = Path(directory, "in"), Path(directory, "out")
        source.write_bytes(data)  # noqa: ASYNC240
        await box.upload(source, "big")
        await box.download("big", target)
        expect(target.read_bytes() == data, "other bytes")  # noqa: ASYNC240
    expect(await box.read_file("big") == data, "other bytes")


async def a_files_error_is_the_files(trial: ContractTrial) -> None:
    box = await trial.box()
    try:
        await box.read_file("not-there")
    except FileNotFoundError:
        return
    expect(False, "no error")


async def a_saved_state_is_restored_in_another(trial: ContractTrial) -> None:
    box, other = await trial.box(), await trial.box()
    reasons = await box.mark()
    if reasons:
        return  # it has no checkpoints, and says so
    await box.bash("cd /tmp; X=7; echo state > kept")
    saved = await box.save()
    expect(saved.data is not None and not saved.lost, saved.lost)
    await other.mark()
    await other.restore(saved.data or b"")
    result = await other.bash('echo "$PWD $X"; cat kept')
    expect(result.output == "/tmp 7\nstate\n", result)  # noqa: S108 - inside


LINK_CHECKS = (
    a_named_call_outlasts_its_link, an_ended_call_gives_its_result_again, a_call_without_a_name_ends_with_its_link,
    a_cancelled_named_call_is_stopped, calls_at_the_same_time_have_links_of_their_own,
    a_later_attempt_takes_the_sandbox, large_files_go_in_and_out, a_files_error_is_the_files,
    a_saved_state_is_restored_in_another,
)  # fmt: skip
