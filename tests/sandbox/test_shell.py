"""The persistent bash, the same in every kind of sandbox."""

import asyncio

import pytest

from sandbox.protocol import Sandbox, SandboxLimits
from tests.sandbox.conftest import EVERYWHERE, Create

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)]


async def test_output_and_exit_code_come_back(sandbox: Sandbox) -> None:
    result = await sandbox.bash("echo out; echo err >&2; false")
    assert (result.output, result.exit_code, result.timed_out) == ("out\nerr\n", 1, False)


async def test_directory_variables_functions_and_the_last_exit_code_stay(sandbox: Sandbox) -> None:
    await sandbox.bash("cd /tmp; shown=1; export given=2; f() { echo f$1; }; (exit 7)")
    result = await sandbox.bash("echo $? $PWD $shown $given $(f 3)")
    assert result.output == "7 /tmp 1 2 f3\n"


async def test_background_jobs_stay(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 300 & pid=$!")
    assert (await sandbox.bash("kill -0 $pid && jobs %1 | grep -c Running")).output == "1\n"
    assert (await sandbox.bash("kill %1; wait %1; echo $?")).output.splitlines()[-1] == "143"


async def test_here_documents_and_quotes_arrive_as_they_are(sandbox: Sandbox) -> None:
    text = 'it\'s "quoted" $HOME `x` \\n\ttab'
    result = await sandbox.bash(f"cat <<'END'\n{text}\nEND")
    assert result.output == text + "\n"


async def test_a_command_longer_than_a_terminal_line_arrives_whole(sandbox: Sandbox) -> None:
    result = await sandbox.bash(f"printf %s {'x' * 50_000} | wc -c")
    assert result.output.strip() == "50000"


async def test_a_syntax_error_is_the_commands_own_failure(sandbox: Sandbox) -> None:
    for broken in ('echo "open', "if", "fi", "echo $(", "for x in"):
        result = await sandbox.bash(broken)
        assert result.exit_code not in (0, None), broken
        assert "syntax error" in result.output or "unexpected EOF" in result.output
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_nothing_printed_is_taken_for_the_end_of_the_command(sandbox: Sandbox) -> None:
    result = await sandbox.bash("printf '\\036abc;0\\036'; set | grep -a __prorl_done; echo real end")
    assert result.output.endswith("real end\n")
    assert result.exit_code == 0
    assert (await sandbox.bash("echo next")).output == "next\n"


async def test_input_is_not_echoed(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("read a; echo got $a")).exit_code is None
    assert (await sandbox.bash("secret", is_input=True)).output == "got secret\n"


async def test_a_command_that_waits_for_input_returns_long_before_its_timeout(sandbox: Sandbox) -> None:
    result = await sandbox.bash("read -p 'name? ' name; echo $name", timeout_s=60)
    assert (result.output, result.exit_code, result.timed_out) == ("name? ", None, False)
    assert result.seconds < 50
    result = await sandbox.bash("Ada", is_input=True)
    assert (result.output, result.exit_code) == ("Ada\n", 0)


async def test_a_new_command_while_one_waits_for_input_is_refused_with_advice(sandbox: Sandbox) -> None:
    await sandbox.bash("cat")
    result = await sandbox.bash("echo hi")
    assert result.exit_code is None
    assert "is_input" in result.output
    assert (await sandbox.bash("typed", is_input=True)).output == "typed\n"
    assert (await sandbox.bash("C-d", is_input=True)).exit_code == 0
    assert (await sandbox.bash("echo hi")).output == "hi\n"


async def test_control_c_as_input_stops_the_waiting_command(sandbox: Sandbox) -> None:
    await sandbox.bash("cat")
    assert (await sandbox.bash("C-c", is_input=True)).exit_code == 130
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_input_without_a_running_command_is_refused(sandbox: Sandbox) -> None:
    result = await sandbox.bash("y", is_input=True)
    assert result.exit_code == 1
    assert "no command is running" in result.output


async def test_input_that_nobody_read_is_not_run_as_a_command(sandbox: Sandbox) -> None:
    await sandbox.bash("read a")
    await sandbox.bash("one\ntouch /tmp/typed-ahead", is_input=True)
    assert (await sandbox.bash("ls /tmp/typed-ahead")).exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60",
        "sleep 60; sleep 60",
        "while :; do :; done",
        "for i in 1 2 3; do sleep 60; done",
        "bash -c 'trap \"\" INT; sleep 60'",
        "sleep 60 | cat",
    ],
)
async def test_a_timeout_stops_the_command_and_leaves_the_shell_usable(sandbox: Sandbox, command: str) -> None:
    await sandbox.bash("kept=1")
    result = await sandbox.bash(f"echo begun; {command}", timeout_s=1.0)
    assert result.timed_out
    assert result.output.startswith("begun\n")
    assert result.seconds < 50
    assert (await sandbox.bash("echo $kept", timeout_s=50)).output == "1\n"


async def test_an_interrupt_that_meets_the_end_of_a_command_does_not_cost_the_shell(sandbox: Sandbox) -> None:
    """The second interrupt comes while bash, slowed down by a trap, is about to say that the command is over."""
    await sandbox.bash("kept=1; mkfifo empty; exec 9<>empty; trap 'read -t 0.4 -u 9' DEBUG")
    result = await sandbox.bash("sleep 60", timeout_s=1)
    assert (result.timed_out, "new one" in result.output) == (True, False)
    assert "1" in (await sandbox.bash("trap - DEBUG; echo $kept")).output.splitlines()


async def test_no_part_of_a_command_runs_when_it_is_stopped_before_bash_has_read_it(sandbox: Sandbox) -> None:
    lines = "touch begun\n" * 100_000
    result = await sandbox.bash(f"if false; then\n{lines}fi", timeout_s=0.01)
    assert result.timed_out
    assert (await sandbox.bash("[ -e begun ] || echo not begun")).output.splitlines()[-1:] == ["not begun"]


async def test_a_shell_that_cannot_be_stopped_is_replaced_and_says_so(sandbox: Sandbox) -> None:
    result = await sandbox.bash("trap '' INT; while :; do :; done", timeout_s=1.5)
    assert result.timed_out
    assert "new one" in result.output
    assert (await sandbox.bash("echo on")).output == "on\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("kill -9 $$", 137), ("exec true", 0), ("set -e; false; echo no", 1), ("exec /bin/false", 1)],
)
async def test_a_shell_that_ends_is_replaced_in_the_same_directory_and_says_so(
    sandbox: Sandbox, command: str, code: int
) -> None:
    await sandbox.bash("cd /tmp; lost=1")
    result = await sandbox.bash(command)
    assert result.exit_code == code
    assert f"the shell ended with exit code {code}" in result.output
    assert "\nno" not in result.output
    assert (await sandbox.bash("echo $PWD $lost")).output == "/tmp\n"


async def test_a_shell_that_lets_go_of_the_terminal_is_waited_for_all_the_same(sandbox: Sandbox) -> None:
    result = await sandbox.bash("exec sleep 0.2 </dev/null >/dev/null 2>&1 255>&-")
    assert result.exit_code == 0
    assert "the shell ended" in result.output


async def test_redirecting_the_shell_itself_does_not_lose_the_end_of_commands(sandbox: Sandbox) -> None:
    await sandbox.bash("exec 5>&1 >/tmp/log 2>&1 </dev/null; echo to log")
    assert (await sandbox.bash("echo again")).output == ""
    assert (await sandbox.bash("exec >&5 2>&5; cat /tmp/log")).output == "to log\nagain\n"


async def test_shell_options_do_not_break_the_session(sandbox: Sandbox) -> None:
    await sandbox.bash("set -eux")
    result = await sandbox.bash("if false; then :; fi; ! true || echo reached")
    assert result.exit_code == 0
    await sandbox.bash("set +eux; set -v; PROMPT_COMMAND='echo prompt'; PS1='> '")
    assert "there" in (await sandbox.bash("echo there")).output


async def test_functions_that_are_named_like_builtins_do_not_break_the_session(sandbox: Sandbox) -> None:
    for name in ("printf", "unset", "return"):
        assert (await sandbox.bash(f"{name}() {{ :; }}; (exit 3)", timeout_s=10)).exit_code in {0, 3}
    assert (await sandbox.bash("echo still; false", timeout_s=10)).output == "still\n"


async def test_a_program_that_died_in_raw_mode_leaves_a_working_terminal(sandbox: Sandbox) -> None:
    await sandbox.bash("stty raw echo -isig")
    result = await sandbox.bash("read a; echo got $a")
    assert result.exit_code is None
    assert (await sandbox.bash("x", is_input=True)).output == "got x\n"


async def test_long_output_keeps_head_and_tail_and_says_what_was_dropped(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(output_bytes=1000))
    result = await sandbox.bash("echo head; head -c 20000000 /dev/zero | tr '\\0' x; echo tail")
    assert result.dropped_bytes == 20_000_010 - 1000
    assert result.output.startswith("head\nxxx")
    assert result.output.endswith("xxxtail\n")
    assert f"[... {result.dropped_bytes} bytes dropped ...]" in result.output
    assert len(result.output) < 1100


async def test_a_cut_never_splits_a_character(create: Create) -> None:
    sandbox = await create(limits=SandboxLimits(output_bytes=1001))
    result = await sandbox.bash("printf 'é€𝄞%.0s' $(seq 1000)")
    assert "\ufffd" not in result.output
    assert result.dropped_bytes > 0


async def test_invalid_utf8_is_replaced(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("printf 'a\\xff\\xfeb\\303'")).output == "a\ufffd\ufffdb\ufffd"


async def test_interrupt_stops_the_running_command_from_outside(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.bash("echo begun > begun; sleep 60", timeout_s=60))
    await sandbox.run(["sh", "-c", "until [ -s begun ]; do :; done"])
    await sandbox.interrupt()
    result = await running
    assert (result.exit_code in (130, 137), result.timed_out) == (True, False)
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_interrupt_stops_a_command_that_waits_for_input(sandbox: Sandbox) -> None:
    await sandbox.bash("cat")
    await sandbox.interrupt()
    assert (await sandbox.bash("echo on")).output == "on\n"


async def test_a_cancelled_call_stops_what_it_started(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.bash("echo $BASHPID > begun; sleep 60", timeout_s=60))
    await sandbox.run(["sh", "-c", "until [ -s begun ]; do :; done"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await sandbox.bash("jobs; echo on")
    assert result.output == "on\n"
    assert result.seconds < 50


async def test_a_command_that_says_its_end_itself_ends_with_an_exit_code(sandbox: Sandbox) -> None:
    """The nonce of the mark is in the command that a trap reads. What it says there may be no number."""
    say_it = r"""printf '%s;nope\n' "${BASH_COMMAND##* }" >&0"""
    forged = f"forge() {{ case $BASH_COMMAND in *__prorl_done*) {say_it};; esac; }}; trap forge DEBUG"
    assert (await sandbox.bash(forged)).exit_code == 1
    for command in ("true", "trap - DEBUG", "true", "true"):
        result = await sandbox.bash(command)
        assert result.exit_code is None or 0 <= result.exit_code < 256
    assert "42" in (await sandbox.bash("echo $((6 * 7))")).output


async def test_all_that_was_printed_before_the_end_is_in_the_output(sandbox: Sandbox) -> None:
    """The end is said elsewhere than on the terminal, which holds some kilobytes."""
    lines = "".join(f"{number}\n" for number in range(1, 3001))
    for _ in range(20):
        assert (await sandbox.bash("seq 3000")).output == lines
        assert (await sandbox.bash("for i in {1..3000}; do echo $i; done")).output == lines


async def test_programs_inherit_nothing_of_the_shells_own(sandbox: Sandbox) -> None:
    for _ in range(2):
        listed = await sandbox.bash("ls /proc/self/fd | cat")
        assert listed.output == "0\n1\n2\n3\n"  # the last is of the directory that it lists


@pytest.mark.parametrize(
    "command",
    [
        'for fd in {0..30} 255; do eval "exec $fd>&-"; done',
        'for fd in {3..30}; do eval "exec $fd</dev/null"; done',
        "for fd in {3..30}; do echo nonsense >&$fd; done",
        'for fd in {3..30}; do eval "exec $fd>&1"; done',
        "head -c 1000000 /dev/zero >&20",
    ],
)
async def test_what_a_command_does_to_descriptors_costs_it_no_more_than_the_shell(
    sandbox: Sandbox, command: str
) -> None:
    await sandbox.bash(command, timeout_s=1.0)
    for again in (("true", False), ("C-c", True), ("C-d", True), ("true", False)):
        await sandbox.bash(again[0], is_input=again[1], timeout_s=1.0)
    assert (await sandbox.bash("echo on")).output.endswith("on\n")


async def test_a_shell_without_its_terminals_descriptor_opens_it_again(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("exec 19>&-")).exit_code == 0
    await sandbox.bash("read a; echo got $a")
    assert (await sandbox.bash("typed", is_input=True)).output == "got typed\n"


@pytest.mark.parametrize("beside", ["", "while :; do echo flood; done & "])
async def test_an_error_that_ends_the_whole_line_ends_the_command(sandbox: Sandbox, beside: str) -> None:
    for error in ("set -u; echo $nothing; echo no", "echo ${nothing:?gone}; echo no"):
        result = await sandbox.bash(beside + error, timeout_s=50)
        assert (result.exit_code, result.timed_out) == (1, False)
        assert "\nno" not in result.output
    assert (await sandbox.bash("kill %1 %2 2>/dev/null; wait 2>/dev/null; echo on")).output.endswith("on\n")
