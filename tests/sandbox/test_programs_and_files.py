"""Programs run to their end, and files carried in and out."""

import asyncio

import pytest

from sandbox.protocol import Sandbox, SandboxLimits
from tests.sandbox.conftest import EVERYWHERE, Create

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)]


async def test_a_program_gets_its_input_and_its_streams_come_apart(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "cat; echo err >&2; exit 4"], stdin=b"\x00\xff in")
    assert (result.stdout, result.stderr, result.exit_code) == (b"\x00\xff in", b"err\n", 4)


async def test_a_megabyte_passes_both_ways(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 4096
    result = await sandbox.run(["cat"], stdin=data, output_bytes=2 << 20)
    assert (result.stdout == data, result.dropped_bytes) == (True, 0)


async def test_a_program_that_does_not_read_its_input_still_ends(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["true"], stdin=b"x" * 1_000_000)).exit_code == 0


async def test_a_program_is_over_when_it_exits_whatever_its_children_do(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "sleep 300 & echo done"], timeout_s=100)
    assert (result.stdout, result.exit_code, result.timed_out) == (b"done\n", 0, False)
    assert result.seconds < 50


async def test_a_program_over_its_time_is_killed_with_its_children(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "trap '' TERM INT; echo a; sleep 300 & wait"], timeout_s=1.5)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"a\n")


async def test_a_missing_program_reads_as_in_a_shell(sandbox: Sandbox) -> None:
    result = await sandbox.run(["no-such-program"])
    assert result.exit_code == 127
    assert b"No such file" in result.stderr


async def test_the_working_directory_can_be_chosen(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["pwd"], cwd="/tmp")).stdout == b"/tmp\n"


async def test_output_is_capped_for_each_stream(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(output_bytes=1000))
    result = await sandbox.run(["sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"])
    assert result.dropped_bytes == 20_000_000 - 1000
    assert result.stderr == b"end\n"


async def test_interrupt_kills_programs(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run(["sh", "-c", "echo 1 > begun; sleep 300"], timeout_s=60))
    await sandbox.run(["sh", "-c", "until [ -s begun ]; do :; done"])
    await sandbox.interrupt()
    assert (await running).exit_code == 137


async def test_files_come_back_as_they_went_in(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    await sandbox.write_file("deep/down/file.bin", data, mode=0o750)
    assert await sandbox.read_file("deep/down/file.bin") == data
    assert (await sandbox.run(["stat", "-c", "%a", "deep/down/file.bin"])).stdout == b"750\n"


async def test_a_missing_file_is_told_from_a_dead_sandbox(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError, match="nothing/here"):
        await sandbox.read_file("nothing/here")
    with pytest.raises(OSError, match="directory"):
        await sandbox.write_file("/tmp", b"")


async def test_a_file_over_the_asked_size_is_refused_not_cut(sandbox: Sandbox) -> None:
    await sandbox.write_file("big", b"x" * 100)
    with pytest.raises(OSError, match="larger than 99 bytes"):
        await sandbox.read_file("big", limit_bytes=99)


async def test_a_pipe_or_device_is_not_read_for_ever(sandbox: Sandbox) -> None:
    await sandbox.run(["mkfifo", "pipe"])
    for path in ("pipe", "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            await sandbox.read_file(path)


async def test_programs_inherit_no_descriptor_but_their_own_three(sandbox: Sandbox) -> None:
    expected = ["0", "1", "2", "3"]  # the last one is the listing
    assert (await sandbox.run(["ls", "/proc/self/fd"])).stdout.decode().split() == expected
    assert (await sandbox.bash("ls /proc/self/fd")).output.split() == expected
