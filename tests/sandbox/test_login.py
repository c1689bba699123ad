"""`python -m sandbox shell`: a person's terminal in a running sandbox."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from ptyprocess import PtyProcess

from sandbox import login
from sandbox.errors import SandboxError
from sandbox.host.process import start_time
from sandbox.lifetime import cgroup, label
from sandbox.lifetime.find import find
from sandbox.protocol import Sandbox
from tests.sandbox.conftest import ISOLATED, Create

ROOT = Path(__file__).parents[2]
SIZE = (33, 99)  # rows and columns
OWNER = "job prorl job-77/1"
PROMPT = "ready> "
LISTED = "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline; echo; done 2>/dev/null"
isolated = pytest.mark.parametrize("kind", [*ISOLATED, "bubblewrap-without-python"], indirect=True)


class Person:
    """A person at a terminal, on which `python -m sandbox shell` runs."""

    def __init__(self, state_dir: Path, name: str) -> None:
        command = [sys.executable, "-m", "sandbox", "shell", "--state-dir", str(state_dir), name]
        env = {**os.environ, "TERM": "dumb", "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, sys.path)))}
        self.terminal = PtyProcess.spawn(command, env=env, dimensions=SIZE)
        self._seen = ""

    async def sees(self, text: str) -> str:
        """What there was since the last call, up to this text."""
        while text not in self._seen:
            self._seen += (await asyncio.to_thread(self.terminal.read)).decode()
        seen, _, self._seen = self._seen.partition(text)
        return seen.replace("\r", "")

    async def is_let_in(self) -> None:
        """A prompt of our own from now on; what is typed is written in two pieces, so that its echo is no answer."""
        await self.sees("$ ")
        self.terminal.write(f"PS1='{PROMPT[:2]}''{PROMPT[2:]}'; stty -echo\n".encode())
        await self.sees(PROMPT)

    async def types(self, line: str) -> list[str]:
        """The lines that a command answers."""
        self.terminal.write(f"{line}\n".encode())
        return (await self.sees(PROMPT)).splitlines()

    async def leaves(self) -> int:
        """The command's exit code, when its terminal has closed."""
        try:
            while True:
                await asyncio.to_thread(self.terminal.read)
        except EOFError:
            code = await asyncio.to_thread(self.terminal.wait)
        return int(code if self.terminal.signalstatus is None else -self.terminal.signalstatus)


@pytest.fixture
async def opened(create: Create) -> Sandbox:
    return await create(OWNER)


@pytest.fixture
async def person(opened: Sandbox, state_dir: Path) -> AsyncIterator[Person]:
    made = Person(state_dir, "job-77")
    await made.is_let_in()
    yield made
    made.terminal.close(force=True)


async def until_alone(sandbox: Sandbox) -> None:
    """Until what the person has started is gone. The suite's time-out is the end."""
    while "--login" in (listed := (await sandbox.bash(LISTED)).output) or "sleep" in listed:
        await asyncio.sleep(0.05)


def members(group: str) -> int:
    """How many processes there are in a control group."""
    return len(Path(group, "cgroup.procs").read_text().splitlines())


@isolated
@pytest.mark.anyio
async def test_a_person_sees_the_sandbox_and_leaves_with_the_shells_exit_code(opened: Sandbox, person: Person) -> None:
    await opened.bash("echo of the agent >/workspace/file; sleep 321 &")
    assert await person.types("pwd; cat file; stty size; echo $HOME $TERM; uname -n 2>/dev/null || echo sandbox") == [
        "/workspace", "of the agent", "33 99", "/home/agent dumb", "sandbox",
    ]  # fmt: skip
    while "sleep 321 " not in await person.types(LISTED):  # bash answers before its child runs the command
        await asyncio.sleep(0.05)
    assert (await person.types("echo $PRORL_SANDBOX_ID"))[0].endswith(opened.handle.sandbox_id)
    rights = await person.types("grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status")
    assert [line.split()[1] for line in rights] == ["0" * 16, "0" * 16, "1"]
    person.terminal.setwinsize(20, 60)
    while await person.types("stty size") != ["20 60"]:
        pass
    person.terminal.write(b"sleep 322\n")
    while "sleep 322" not in (await opened.bash(LISTED)).output:
        await asyncio.sleep(0.05)
    person.terminal.sendintr()
    await person.sees(PROMPT)
    assert await person.types("echo $?") == ["130"]
    person.terminal.write(b"exit 7\n")
    assert await person.leaves() == 7
    assert "--login" not in (await opened.bash(LISTED)).output


@isolated
@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_killed_command_leaves_no_process(opened: Sandbox, person: Person, number: signal.Signals) -> None:
    await person.types("nohup sleep 321 >/dev/null 2>&1 & setsid sleep 322 & (setsid sleep 323 &)")
    os.kill(person.terminal.pid, number)
    assert await person.leaves() == (143 if number == signal.SIGTERM else -9)
    await until_alone(opened)
    assert (await opened.bash("echo on")).output == "on\n"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_the_persons_terminal_is_as_before_when_the_command_is_told_to_end(
    opened: Sandbox, person: Person
) -> None:
    lines = termios.ECHO | termios.ICANON
    assert termios.tcgetattr(person.terminal.fd)[3] & lines == 0
    os.kill(person.terminal.pid, signal.SIGTERM)
    while start_time(person.terminal.pid) is not None:
        await asyncio.sleep(0.02)
    assert termios.tcgetattr(person.terminal.fd)[3] & lines == lines


@isolated
@pytest.mark.anyio
async def test_the_shell_ends_with_the_sandbox(opened: Sandbox, person: Person) -> None:
    await opened.close()
    assert await person.leaves() != 0


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_the_shell_has_the_sandboxs_resource_limits(opened: Sandbox, person: Person) -> None:
    """Those of its server, which has a few more processes than the agent."""
    assert await person.types("ulimit -u; ulimit -c") == ["272", "0"]


@pytest.mark.anyio
@pytest.mark.skipif(
    cgroup.delegated() is None, reason="no control groups can be made here: `make test-cgroups` does it elsewhere"
)
@pytest.mark.parametrize("kind", ISOLATED, indirect=True)
async def test_the_shell_is_in_the_sandboxs_control_group(opened: Sandbox, person: Person) -> None:
    made = label.read(Path(opened.handle.directory))
    assert made is not None
    before = members(made.cgroups[0])
    person.terminal.write(b"sleep 321\n")
    while "sleep 321" not in (await opened.bash(LISTED)).output:
        await asyncio.sleep(0.05)
    assert members(made.cgroups[0]) == before + 1


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["local"], indirect=True)
async def test_a_local_sandbox_has_no_shell_of_its_own(opened: Sandbox) -> None:
    directory = Path(opened.handle.directory)
    made = label.read(directory)
    assert made is not None
    with pytest.raises(SandboxError, match=f"plain processes of this machine.*{directory}"):
        login.require_shell(made, directory)


def test_a_name_that_nothing_has_is_told_in_one_line_and_fails(state_dir: Path) -> None:
    command = [sys.executable, "-m", "sandbox", "shell", "--state-dir", str(state_dir), "job-77"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    expected = "sandbox: there is no sandbox 'job-77' here; `python -m sandbox list` shows those of a state directory\n"
    assert (done.returncode, done.stderr) == (1, expected)


def named(sandbox_id: str, owner: str, *, alive: bool = True) -> label.Label:
    me = os.getpid()
    made = label.Label(
        owner=owner, kind="bubblewrap", node="node-1", sandbox_id=sandbox_id,
        maker_pid=0, maker_started="", pid=me, pid_started=start_time(me) or "",
    )  # fmt: skip
    return made if alive else msgspec.structs.replace(made, pid_started="another")


KNOWN = (
    named("aa11", "job prorl job-1/1", alive=False),
    named("aa22", "job prorl job-1/2"),
    named("bb33", "job prorl job-12/1"),
    named("cc44", "by hand"),
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aa11", "aa11"),
        ("aa", "aa22"),
        ("bb", "bb33"),
        ("job-1/", "aa22"),
        ("job-1/1", "aa11"),
        ("job-12", "bb33"),
        ("by hand", "cc44"),
    ],
)
def test_a_sandbox_is_found_by_the_beginning_of_its_id_or_of_its_owners(name: str, found: str) -> None:
    assert find(name, KNOWN).sandbox_id == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job-1", "'job-1' may be several sandboxes, give more of an id.*aa22.*bb33"),
        ("job-2/1", "there is no sandbox 'job-2/1' here; near it are:.*job-1/1"),
        ("", "there is no sandbox ''"),
    ],
)
def test_a_name_of_none_or_of_several_is_refused_with_what_there_is(name: str, words: str) -> None:
    with pytest.raises(SandboxError, match=re.compile(words, re.DOTALL)):
        find(name, KNOWN)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (named("aa11", "by hand", alive=False), "sandbox aa11 is dead, or of another machine.*'node-1'"),
        (
            label.Label(
                owner="by hand", kind="bubblewrap", node="node-1", sandbox_id="aa11",
                maker_pid=os.getpid(), maker_started=start_time(os.getpid()) or "",
            ),
            "sandbox aa11 is still starting",
        ),
    ],
)  # fmt: skip
def test_there_is_no_shell_in_what_does_not_run(made: label.Label, words: str) -> None:
    with pytest.raises(SandboxError, match=words):
        login.require_shell(made, Path("/nowhere"))


def test_what_is_piped_is_refused() -> None:
    with pytest.raises(SandboxError, match="needs a terminal"):
        login.shell(named("aa11", "by hand"), Path("/nowhere"))


def test_without_ptyprocess_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptyprocess", None)
    with pytest.raises(SandboxError, match=r"pip install 'prorl-mq\[service\]'"):
        login.shell(named("aa11", "by hand"), Path("/nowhere"))
