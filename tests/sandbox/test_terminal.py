"""What programs do to the shell's terminal, and what the agent does to its shell."""

import asyncio

import pytest

from sandbox.protocol import Sandbox
from tests.sandbox.conftest import EVERYWHERE

pytestmark = pytest.mark.anyio
everywhere = pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)

SELECT = "import select, sys; select.select([0], [], [])"
POLL = "import select, sys; poll = select.poll(); poll.register(0, 1); poll.poll()"
EPOLL = "import select, sys; epoll = select.epoll(); epoll.register(0, 1); epoll.poll()"
READLINE = "import readline, sys"
LOOP = "import asyncio, sys; loop = asyncio.new_event_loop(); loop.add_reader(0, loop.stop); loop.run_forever()"
CURSES = "import curses; curses.wrapper(lambda window: window.getch())"


@everywhere
async def test_prompts_that_a_command_sets_do_not_show(sandbox: Sandbox) -> None:
    """A virtual environment's activation sets one."""
    set_all = "PS1='one> '; PS2='two> '; PS0='zero'; PROMPT_COMMAND='echo command'"
    assert (await sandbox.bash(set_all)).output == ""
    assert (await sandbox.bash(f"echo a\n{set_all}\necho b")).output == "a\nb\n"
    assert (await sandbox.bash("false\n(exit 7)")).exit_code == 7
    assert (await sandbox.bash("echo $?")).output == "7\n"


@everywhere
async def test_traced_and_failing_commands_show_nothing_of_ours_but_their_own_line(sandbox: Sandbox) -> None:
    await sandbox.bash("set -x")
    result = await sandbox.bash("echo a")
    assert result.output == "+ eval 'echo a'\n++ echo a\na\n"
    await sandbox.bash("set +x; set -e")
    assert (await sandbox.bash("! true; echo $?")).output == "1\n"
    result = await sandbox.bash("false")
    assert (result.exit_code, "the shell ended" in result.output) == (1, True)


@everywhere
async def test_traps_run(sandbox: Sandbox) -> None:
    await sandbox.bash("trap 'echo interrupted' INT; trap 'echo failed' ERR")
    assert (await sandbox.bash("kill -INT $$; echo after")).output == "interrupted\nafter\n"
    assert (await sandbox.bash("false; true")).output == "failed\n"
    await sandbox.bash("trap - INT ERR; trap 'echo bye' EXIT")
    result = await sandbox.bash("exit 3")
    assert (result.exit_code, "bye\n" in result.output) == (3, True)


@everywhere
async def test_a_command_of_a_megabyte_arrives_whole(sandbox: Sandbox) -> None:
    result = await sandbox.bash(f"x='{'y' * 1_000_000}'; echo ${{#x}}")
    assert result.output == "1000000\n"


@everywhere
async def test_lines_longer_than_the_terminals_pass_out_whole(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("printf 'x%.0s' {1..20000}")).output == "x" * 20_000


@everywhere
async def test_input_longer_than_a_terminal_line_is_refused_not_cut(sandbox: Sandbox) -> None:
    await sandbox.bash("read -r a; echo ${#a}")
    result = await sandbox.bash("x" * 5000, is_input=True)
    assert (result.exit_code, "longer than a terminal takes" in result.output) == (None, True)
    assert (await sandbox.bash("x" * 4000, is_input=True)).output == "4000\n"


@everywhere
async def test_input_of_many_lines_passes_whatever_its_length(sandbox: Sandbox) -> None:
    lines = "".join(f"{number:099}\n" for number in range(1000))
    await sandbox.bash("head -n 1000 | wc -c")
    assert (await sandbox.bash(lines, is_input=True)).output.strip() == "100000"


@everywhere
async def test_a_long_line_passes_where_the_program_edits_lines_itself(sandbox: Sandbox) -> None:
    await sandbox.bash("stty -icanon; head -c 20000 | wc -c")
    assert (await sandbox.bash("x" * 20_000, is_input=True)).output.strip() == "20000"


@everywhere
async def test_a_password_prompt_waits_and_shows_nothing(sandbox: Sandbox) -> None:
    result = await sandbox.bash("read -s -p 'password: ' p; echo; echo ${#p}")
    assert (result.output, result.exit_code) == ("password: ", None)
    assert (await sandbox.bash("secret", is_input=True)).output == "\n6\n"


async def test_input_is_waited_for_after_a_program_that_did_not_block(sandbox: Sandbox) -> None:
    await sandbox.bash("python3 -c 'import os; os.set_blocking(0, False)'")
    assert (await sandbox.bash("read a; echo got $a")).exit_code is None
    assert (await sandbox.bash("typed", is_input=True)).output == "got typed\n"


@everywhere
async def test_a_command_that_eats_the_shells_own_commands_is_stopped(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("cat /proc/$$/fd/20")).exit_code == 1  # a socket cannot be opened
    result = await sandbox.bash(f"cat <&20 # {'x' * 5000}", timeout_s=0.5)
    assert result.timed_out
    assert (await sandbox.bash("echo on", timeout_s=50)).output.endswith("on\n")


@everywhere
async def test_a_shell_that_died_between_commands_is_replaced_before_the_next_one(sandbox: Sandbox) -> None:
    await sandbox.bash("cd /tmp; echo $$ > shell")
    until_dead = "while grep -q '^State:.[^Z]' /proc/$shell/status 2>/dev/null; do :; done"
    await sandbox.run(["sh", "-c", f"shell=$(cat /tmp/shell); kill -9 $shell; {until_dead}"])
    result = await sandbox.bash("echo on $PWD")
    assert result.exit_code == 0
    assert "the shell ended with exit code 137" in result.output
    assert result.output.endswith("on /tmp\n")


@pytest.mark.parametrize(
    "wait", [SELECT, POLL, EPOLL, READLINE, LOOP], ids=["select", "poll", "epoll", "readline", "loop"]
)
async def test_a_program_that_waits_for_input_is_noticed_however_it_waits(sandbox: Sandbox, wait: str) -> None:
    result = await sandbox.bash(f'python3 -c \'{wait}; print("got", input("name? "))\'', timeout_s=60)
    assert (result.exit_code, result.timed_out) == (None, False)
    assert result.seconds < 50
    result = await sandbox.bash("Ada", is_input=True)
    if result.exit_code is None:
        result = await sandbox.bash("Ada", is_input=True)
    assert "got Ada" in result.output


async def test_a_program_that_waits_for_something_else_is_not_taken_for_waiting(sandbox: Sandbox) -> None:
    wait = "import select, os; r, w = os.pipe(); poll = select.poll(); poll.register(r, 1); poll.poll(900)"
    assert (await sandbox.bash(f"python3 -c '{wait}'; echo done")).output == "done\n"


async def test_a_full_screen_program_can_be_left(sandbox: Sandbox) -> None:
    result = await sandbox.bash(f"TERM=xterm python3 -c '{CURSES}'; echo left", timeout_s=60)
    assert (result.exit_code, result.timed_out) == (None, False)
    result = await sandbox.bash("q", is_input=True)
    assert (result.exit_code, "left" in result.output) == (0, True)
    assert (await sandbox.bash("stty size; read -p '? ' a")).exit_code is None
    assert (await sandbox.bash("C-c", is_input=True)).exit_code == 130


async def test_a_program_that_redraws_its_screen_can_be_left(sandbox: Sandbox) -> None:
    """As `top` does: it waits for a key, but not for long."""
    code = "import select, sys\nwhile not select.select([0], [], [], 0.5)[0]: print(chr(27) + '[H.', flush=True)"
    result = await sandbox.bash(f'python3 -c "{code}"; echo left', timeout_s=60)
    assert result.exit_code is None
    async with asyncio.timeout(60):
        while result.exit_code is None:
            result = await sandbox.bash("q", is_input=True)
    assert "left" in result.output
