"""An installation is quiet where it works, and says where its log is where it does not."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from prorl_mq.cli.installing import command, parts
from prorl_mq.cli.installing.parts import Part
from prorl_mq.cli.installing.progress import Installing
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.children import Guard
from prorl_mq.shipped import shipped

pytestmark = [pytest.mark.process, pytest.mark.anyio]


def part(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One installer, a real program, in place of all."""
    program = tmp_path / "installer.sh"
    program.write_text(text)
    monkeypatch.setattr(parts, "shipped", lambda _: program)
    monkeypatch.setattr(parts, "PARTS", {"one": Part("a thing", 1, parts.Installer("installer.sh"), "made")})


def runs(pid: str) -> bool:
    """False for one that has ended and that nobody has waited for, too."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_what_an_installer_says_is_in_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part(tmp_path, 'echo "many words" >&2; touch "$1/made"', monkeypatch)
    await command.install(["one"], tmp_path)
    said = capsys.readouterr()
    assert said.out == "one: a thing\n"
    assert "installed in" in said.err.splitlines()[-1]
    assert (tmp_path / "logs/install-tools.log").read_text() == "many words\n"
    assert parts.complete(parts.PARTS["one"], tmp_path)


async def test_what_it_says_on_standard_output_is_for_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part(tmp_path, "echo apptainer is missing", monkeypatch)
    await command.install(["one"], tmp_path)
    assert capsys.readouterr().out.splitlines() == ["apptainer is missing", "one: a thing"]


async def test_one_that_fails_shows_its_last_words_and_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part(tmp_path, "seq 100 >&2; echo no room >&2; exit 3", monkeypatch)
    with pytest.raises(ConfigurationError) as fault:
        await command.install(["one"], tmp_path)
    said = str(fault.value)
    assert f"installer.sh ended with exit code 3; the whole log is {tmp_path}/logs/install-tools.log" in said
    assert said.endswith("99\n100\nno room")
    assert "\n50\n" not in said


async def test_an_interrupt_ends_the_installer_and_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part(tmp_path, 'sleep 600 & echo $! >"$1/pid"; touch "$1/begun"; wait', monkeypatch)
    installing = asyncio.create_task(command.install(["one"], tmp_path))
    while not (tmp_path / "begun").exists():
        assert not installing.done()
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(asyncio.CancelledError):
        await installing
    while runs((tmp_path / "pid").read_text().strip()):
        await asyncio.sleep(0.01)


async def test_what_an_installer_has_started_ends_with_a_killed_command(tmp_path: Path) -> None:
    """A pip of an hour ran on, into the directory that the next try fills."""
    (tmp_path / "installer.sh").write_text('sleep 600 & echo $! >"$1/pid"; touch "$1/begun"; wait')
    code = """
import asyncio, sys
from pathlib import Path
from prorl_mq.cli.installing import command, parts
state = Path(sys.argv[1])
parts.shipped = lambda _: state / "installer.sh"
parts.PARTS = {"one": parts.Part("a thing", 1, parts.Installer("installer.sh"), "made")}
asyncio.run(command.install(["one"], state))
"""
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path))
    while not (tmp_path / "begun").exists():
        assert killed.returncode is None
        await asyncio.sleep(0.01)
    pid = (tmp_path / "pid").read_text().strip()
    assert runs(pid)
    killed.kill()
    await killed.wait()
    while runs(pid):
        await asyncio.sleep(0.01)


async def test_an_installer_does_not_begin_before_its_guard_knows_of_it(tmp_path: Path) -> None:
    """The command may be killed in between, as on a busy machine."""
    gate = [*command.GATE, "touch", str(tmp_path / "begun")]
    waiting = await asyncio.create_subprocess_exec(*gate, stdin=asyncio.subprocess.PIPE)
    assert waiting.stdin is not None
    waiting.stdin.close()
    assert await waiting.wait() != 0
    assert not (tmp_path / "begun").exists()


async def test_the_gate_of_an_installer_opens_when_its_guard_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part(tmp_path, 'touch "$1/begun" "$1/made"', monkeypatch)
    tell, opened = Guard.tell, command._opened
    seen: list[tuple[str, bool]] = []

    def told(guard: Guard, sign: str, pgid: int) -> None:
        seen.append((sign, (tmp_path / "begun").exists()))
        tell(guard, sign, pgid)

    def opening(gate: asyncio.StreamWriter | None) -> None:
        seen.append(("open", (tmp_path / "begun").exists()))
        opened(gate)

    monkeypatch.setattr(Guard, "tell", told)
    monkeypatch.setattr(command, "_opened", opening)
    await command.install(["one"], tmp_path)
    assert seen == [("+", False), ("open", False), ("-", True)]


async def test_folders_are_copied(tmp_path: Path) -> None:
    await command.install(["monitoring", "examples"], tmp_path)
    assert (tmp_path / "monitoring/alerts.yml").read_text().startswith("#")
    assert parts.complete(parts.PARTS["examples"], tmp_path)
    assert list((tmp_path / "examples/trainers").glob("*.py"))


@pytest.mark.parametrize("name", parts.PARTS)
def test_every_part_has_its_program_or_folder(name: str) -> None:
    step = parts.PARTS[name].step
    place = shipped(step.folder if isinstance(step, parts.FolderCopy) else f"ops/{step.name}")
    assert place.exists()


def test_the_bar_waits_before_the_end_of_a_part_that_takes_longer() -> None:
    progress = Installing({"one": 1e-9, "two": 1.0})
    progress.begin("one", "a thing")
    assert progress.fraction() < 1e-9
    progress.end()
    assert 1e-10 < progress.fraction() < 0.5
