"""A program that runs alone leaves nothing behind, and what has left its session is counted."""

import pytest

from sandbox.protocol import Sandbox
from tests.sandbox.conftest import EVERYWHERE

pytestmark = pytest.mark.anyio
everywhere = pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)
front_or_not = pytest.mark.parametrize("kind", ["apptainer", "bubblewrap"], indirect=True)
BURN = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; times > burnt"
DETACHED = "mkfifo told; (setsid sh -c '{}' &); read line < told"
SPINNER = DETACHED.format(f"{BURN}; echo $$ > pid; echo 1 > told; while :; do :; done")
ENDED = DETACHED.format(f"({BURN}); echo $$ > pid; echo 1 > told")
WRITER = DETACHED.format("echo 1 > told; while :; do echo forged > answer; done")
FLEEING = "printf 'echo 1 > answer; setsid sh ./flee & exit' > flee; sh ./flee; until [ -s answer ]; do :; done"


async def seconds_burnt(sandbox: Sandbox) -> float:
    """CPU time that a detached process has told of itself, as the shell writes it: `0m0.25s 0m0.00s`."""
    own = [each.rstrip("s").split("m") for each in (await sandbox.read_file("burnt")).decode().split()[:2]]
    return sum(60 * float(minutes) + float(seconds) for minutes, seconds in own)


@everywhere
@pytest.mark.parametrize("program", [SPINNER, ENDED], ids=["alive", "ended"])
async def test_what_leaves_its_session_is_counted_and_gone_after_a_program_that_runs_alone(
    sandbox: Sandbox, program: str
) -> None:
    result = await sandbox.run(["sh", "-c", program], alone=True)
    assert result.exit_code == 0
    assert result.cpu_seconds >= await seconds_burnt(sandbox) > 0.02
    assert (await sandbox.run(["sh", "-c", "kill -0 $(cat pid)"])).exit_code == 1


@front_or_not
async def test_a_control_without_alone_the_detached_is_neither_counted_nor_gone(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", SPINNER])
    assert result.cpu_seconds < await seconds_burnt(sandbox)
    assert (await sandbox.run(["sh", "-c", "kill -0 $(cat pid)"])).exit_code == 0


@everywhere
@pytest.mark.parametrize("program", [WRITER, FLEEING], ids=["writes", "starts itself again and again"])
async def test_nothing_of_a_program_that_ran_alone_can_write_into_the_next_ones_directory(
    sandbox: Sandbox, program: str
) -> None:
    await sandbox.run(["sh", "-c", program], alone=True)
    await sandbox.run(["rm", "-f", "answer"])
    for _ in range(20):
        assert (await sandbox.run(["ls", "answer"])).exit_code != 0


@front_or_not
@pytest.mark.parametrize("program", [WRITER, FLEEING], ids=["writes", "starts itself again and again"])
async def test_a_control_without_alone_it_does_write(sandbox: Sandbox, program: str) -> None:
    await sandbox.run(["sh", "-c", program])
    again = await sandbox.run(["sh", "-c", "rm -f answer; until [ -e answer ]; do :; done"], timeout_s=60)
    assert again.exit_code == 0


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_program_alone_that_times_out_takes_all_along_and_its_time_counts(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", f"{SPINNER}; sleep 300"], timeout_s=5.0, alone=True)
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert result.cpu_seconds >= await seconds_burnt(sandbox)
    assert (await sandbox.run(["sh", "-c", "kill -0 $(cat pid)"])).exit_code == 1


@front_or_not
async def test_shell_and_background_jobs_of_before_outlive_a_program_that_runs_alone(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 300 & echo $! > job; (setsid sleep 300 & echo $! > orphan); kept=yes")
    await sandbox.run(["sh", "-c", SPINNER], alone=True)
    told = await sandbox.bash("kill -0 $(cat job) $(cat orphan) && echo $kept")
    assert (told.output, told.exit_code) == ("yes\n", 0)
