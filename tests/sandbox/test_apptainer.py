"""What only Apptainer does: its command line, images of all forms, its own process outside."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sandbox.errors import SandboxStartFailed, SandboxUnavailable
from sandbox.host.process import descendants, ended, opened, start_time
from sandbox.isolators import choice
from sandbox.isolators.apptainer_argv import ApptainerLayout, apptainer_argv, apptainer_environment, configuration
from sandbox.isolators.choice import UNTRUSTED, choose
from sandbox.isolators.interpreter import python_of
from sandbox.isolators.kinds import make_provider
from sandbox.isolators.runtime import KEPT, NEW, runtime
from sandbox.lifetime import cgroup, label
from sandbox.lifetime.first_process import first_process
from sandbox.protocol import Mount, Sandbox, SandboxProvider, SandboxSpec
from tests.sandbox.conftest import NODE, TOOLS_DIR, Create, require_apptainer

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
on_apptainer = pytest.mark.parametrize("kind", ["apptainer"], indirect=True)


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "image" / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "image" / "bin").symlink_to("usr/bin")
    return tmp_path / "image"


@pytest.mark.parametrize(
    ("link", "lies_at"),
    [
        ("python3.11", "/usr/bin/python3.11"),
        ("/opt/conda/bin/python3.12", "/opt/conda/bin/python3.12"),
        ("../../opt/python3", "/opt/python3"),
        ("../../../../../opt/python3", "/opt/python3"),
        ("/bin/python3.9", "/usr/bin/python3.9"),
    ],
)
def test_the_python_of_an_image_is_found_behind_its_links(image: Path, link: str, lies_at: str) -> None:
    program(image / lies_at[1:])
    (image / "usr" / "bin" / "python3").symlink_to(link)
    assert python_of(image) == lies_at


def test_an_image_without_a_python_that_serves_has_none(image: Path) -> None:
    assert python_of(image) is None
    python = image / "usr" / "bin" / "python3"
    python.symlink_to("/usr/bin/python3")  # round in circles inside; outside it is this machine's own
    assert python_of(image) is None
    python.unlink()
    program(image / "usr" / "bin" / "python3.7")
    python.symlink_to("python3.7")
    assert python_of(image) is None


def test_the_first_python_on_the_path_is_taken(image: Path) -> None:
    program(image / "usr" / "bin" / "python3")
    assert python_of(image) == "/usr/bin/python3"
    program(image / "usr" / "local" / "bin" / "python3")
    assert python_of(image) == "/usr/local/bin/python3"


def test_a_runtime_is_made_once_for_the_same_content(tmp_path: Path) -> None:
    def of(passwd: str) -> Path:
        with contextlib.closing(runtime(tmp_path / "runtimes", "/usr/bin/pypy3", {"/etc/passwd": passwd})) as held:
            return held.path

    first = of("x")
    assert of("x") == first
    assert of("y") != first
    assert (first / "opt" / "execd").readlink() == Path("/usr/bin/pypy3")
    assert (first / "opt" / "server").read_bytes().startswith(b"from __future__")
    assert (first / "etc" / "passwd").read_text() == "x"


def test_runtimes_do_not_pile_up_and_those_in_use_stay(tmp_path: Path) -> None:
    """Each release and each size of scratch space makes another one."""
    killed, working = tmp_path / f"{NEW}killed", tmp_path / f"{NEW}working"
    for unfinished in (killed, working):
        (unfinished / "runtime").mkdir(parents=True)
    os.utime(killed, (0, 0))
    with contextlib.closing(runtime(tmp_path, None, {"/size": "in use"})) as used:
        for size in range(KEPT + 3):
            runtime(tmp_path, None, {"/size": str(size)}).close()
        there = {path.name for path in tmp_path.iterdir()}
        assert used.path.name in there
        assert len(there) == KEPT + 2  # that one, and one that is being made
    assert working.name in there
    with contextlib.closing(runtime(tmp_path, None, {"/size": "another"})) as another:
        assert another.path.is_dir()
        assert not used.path.exists()  # nobody has it any more


@pytest.mark.parametrize(("scratch_bytes", "mib"), [(1, 2), (1 << 20, 2), ((1 << 20) + 1, 3), (1 << 30, 1025)])
def test_scratch_space_has_room_for_the_largest_file(scratch_bytes: int, mib: int) -> None:
    assert f"sessiondir max size = {mib}\n" in configuration(scratch_bytes)


def test_mounts_are_whole_and_on_no_command_line_and_the_network_is_off() -> None:
    """The name of a door is all that keeps other users of the machine from its sockets."""
    mounts = (Mount(source='/a,b "c"', target="/in:side"), Mount(source="/d", target="/e", writable=True))
    layout = ApptainerLayout(
        program="/p", unshare="/u", configuration="/c", image="/i", runtime="/r", files={}, network=False,
        payload=("/server", "10"), mounts=mounts,
    )  # fmt: skip
    words = apptainer_argv(layout)
    assert "source=" not in " ".join(words)
    assert apptainer_environment(layout)["APPTAINER_MOUNT"].split("\n") == [
        "type=bind,source=/r,destination=/opt/prorl,ro",
        'type=bind,"source=/a,b ""c""",destination=/in:side,ro',
        "type=bind,source=/d,destination=/e,type=bind",
    ]
    assert words[words.index("--network") + 1] == "none"
    forged = Mount(source="/a\ntype=bind,source=/etc,destination=/etc", target="/in")
    with pytest.raises(OSError, match="line break"):
        apptainer_environment(msgspec.structs.replace(layout, mounts=(forged,)))


@pytest.fixture
def oddly_named() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="prorl-a,b:", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        Path(name, "data").write_text("data")
        yield name


@on_apptainer
async def test_paths_with_commas_and_colons_are_mounted(create: Create, oddly_named: str) -> None:
    sandbox = await create(mounts=(Mount(source=oddly_named, target="/mounted,here"),))
    assert await sandbox.read_file("/mounted,here/data") == b"data"


@on_apptainer
async def test_a_mount_below_a_scratch_place_is_seen(create: Create) -> None:
    sandbox = await create(mounts=(Mount(source="/usr/share", target="/workspace/share"),))
    assert (await sandbox.run(["test", "-d", "/workspace/share"])).exit_code == 0
    assert (await sandbox.run(["touch", "/workspace/beside"])).exit_code == 0


@on_apptainer
async def test_the_end_of_apptainers_own_process_ends_the_sandbox(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 300 & setsid sleep 301 &")
    made = label.read(Path(sandbox.handle.directory))
    assert made is not None
    async with asyncio.timeout(90):
        while len(pids := [made.pid, *descendants(made.pid)]) < 4:  # one that just lost its parent is in no list
            await asyncio.sleep(0)
    with opened(made.pid, made.pid_started) as first:
        assert first is not None
        os.kill(made.front_pid, signal.SIGKILL)
        assert await ended(first, 20)
    assert [pid for pid in pids if start_time(pid)] == []  # the kernel ends process 1 last


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@on_apptainer
@pytest.mark.parametrize("end", ["closed", "killed"])
async def test_nothing_is_left_on_the_host(provider: SandboxProvider, state_dir: Path, end: str) -> None:
    """No mount, no helper of Apptainer's, no zombie, no log."""
    before, others = mounts(), set(descendants(os.getpid()))
    sandbox = await provider.create(SandboxSpec(owner="job:1"))
    if end == "killed":
        os.kill(sandbox.handle.pid, signal.SIGKILL)
    await sandbox.close()
    async with asyncio.timeout(90):
        while set(descendants(os.getpid())) - others:
            await asyncio.sleep(0)  # the loop reaps Apptainer's own process when it sees its end
    assert mounts() == before
    assert names_in(state_dir) <= {"sandboxes", "runtimes", "image-cache"}
    assert names_in(state_dir / "sandboxes") == set()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that the user of the sandboxes can enter."""
    with tempfile.TemporaryDirectory(prefix="prorl-image-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@on_apptainer
async def test_an_image_that_sandboxes_of_root_cannot_reach_is_refused_with_a_reason(
    create: Create, open_directory: Path
) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(SandboxStartFailed, match="who cannot enter" if os.geteuid() == 0 else "has no Python"):
        await create(image=str(closed))


def test_a_mistyped_size_of_the_cache_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_apptainer()
    monkeypatch.setenv("PRORL_IMAGES_BYTES", "50G")
    with pytest.raises(SandboxUnavailable, match="PRORL_IMAGES_BYTES='50G'"):
        make_provider("apptainer", node=NODE, state_dir=state_dir, tools_dir=TOOLS_DIR)


def test_without_apptainer_the_kind_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailable, match="prorl-mq install-tools"):
        make_provider("apptainer", node=NODE, state_dir=tmp_path)


async def test_without_its_base_image_the_kind_says_what_to_do(state_dir: Path, tmp_path: Path) -> None:
    require_apptainer()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "apptainer").symlink_to(TOOLS_DIR / "apptainer")
    provider = make_provider("apptainer", node=NODE, state_dir=state_dir, tools_dir=tmp_path / "tools")
    with pytest.raises(SandboxUnavailable, match="no base image"):
        await provider.create(SandboxSpec(owner="job:1"))
    await provider.aclose()


async def test_apptainer_is_chosen_where_it_works(state_dir: Path) -> None:
    require_apptainer()
    assert (await choose(state_dir, TOOLS_DIR)).kind == "apptainer"
    assert list((state_dir / "sandboxes").iterdir()) == []


@pytest.fixture
def broken_tools(tmp_path: Path) -> Path:
    """An installation that is there, and fails."""
    apptainer = tmp_path / "tools" / "apptainer" / "bin" / "apptainer"
    program(apptainer)
    apptainer.write_text("#!/bin/sh\necho 'FATAL: no user namespaces\nfor you' >&2\nexit 255\n")
    (tmp_path / "tools" / "images").mkdir()
    (tmp_path / "tools" / "images" / "base").symlink_to("/")
    tmp_path.chmod(0o755)
    return tmp_path / "tools"


async def test_bubblewrap_is_chosen_where_apptainer_fails_and_the_user_is_told_why(
    broken_tools: Path, state_dir: Path
) -> None:
    chosen = await choose(state_dir, broken_tools)
    assert chosen.kind == "bubblewrap"
    assert chosen.why.startswith("sandboxes use bubblewrap, for Apptainer does not work here: no sandbox for choice")
    assert "\n" not in chosen.why


async def test_untrusted_code_gets_apptainer_with_hard_limits_or_nothing(
    broken_tools: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = cgroup.ControlGroups(version=2, directories=dict.fromkeys(cgroup.NEEDED, Path("/sys/fs/cgroup/service")))
    monkeypatch.setattr(cgroup, "delegated", lambda: None)
    with pytest.raises(SandboxUnavailable, match=r"need hard limits: no control groups can be made here.*Delegate=yes"):
        await choose(state_dir, broken_tools, UNTRUSTED)
    monkeypatch.setattr(cgroup, "delegated", lambda: groups)
    monkeypatch.setattr(choice, "trial", _works)
    chosen = await choose(state_dir, broken_tools, UNTRUSTED)
    assert (chosen.kind, "version 2" in chosen.why) == ("apptainer", True)
    monkeypatch.setattr(choice, "trial", _fails)
    with pytest.raises(
        SandboxUnavailable, match="bubblewrap shows the host's /usr, and Apptainer does not work here: no"
    ):
        await choose(state_dir, broken_tools, UNTRUSTED)
    assert (await choose(state_dir, broken_tools)).kind == "bubblewrap"


async def _works(*_: object) -> str:
    return ""


async def _fails(*_: object) -> str:
    return "no user namespaces"


def test_the_command_line_prints_the_kind_that_works(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandbox", "choose", "--state-dir", str(tmp_path), "--tools-dir", str(tmp_path)]
    environment = {**os.environ, "PATH": "/nowhere"}  # nor unshare and setpriv
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    kind, why = done.stdout.splitlines()
    assert kind == "bubblewrap"
    assert "there is no apptainer" in why


def test_a_sandbox_that_never_answers_has_no_first_process(tmp_path: Path) -> None:
    with label.listen(tmp_path):
        assert first_process(tmp_path, 0.1) == 0


def test_a_sandbox_that_ends_before_it_answers_has_no_first_process(tmp_path: Path) -> None:
    label.listen(tmp_path).close()
    assert first_process(tmp_path, 20) == 0
