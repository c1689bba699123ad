"""The kinds by name, the fake, the one file of the server, the command line."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.errors import SandboxGone, SandboxUnavailable
from sandbox.fake import FakeCall, FakeProvider
from sandbox.isolators.kinds import make_provider
from sandbox.isolators.payload import CHECKPOINT_MODULES, MODULES, checkpoint_source, server_source
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec, ShellResult

ROOT = Path(__file__).parents[2]


def test_an_unknown_kind_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="did you mean 'bubblewrap'"):
        make_provider("bublewrap", node="n", state_dir=tmp_path)


def test_the_local_kind_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "sandbox.isolators.local"):
        make_provider("local", node="n", state_dir=tmp_path)
    assert "do not isolate" in caplog.text


def test_the_server_is_python_3_8(tmp_path: Path) -> None:
    """Its syntax, and every call of the standard library, but those that are used where they are there."""
    sources = {"server": server_source(), **{name: checkpoint_source(name) for name in CHECKPOINT_MODULES}}
    for name, source in sources.items():
        ast.parse(source, feature_version=(3, 8))
        (tmp_path / f"{name}.py").write_bytes(source)
    command = [str(Path(sys.executable).with_name("vermin")), "--target=3.8-", "--no-tips", "--violations"]
    command += ["--exclude", "os.pidfd_open", *(str(tmp_path / f"{name}.py") for name in sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_servers_file_has_every_module_and_no_name_twice() -> None:
    """Those of checkpoints come among the others' names when a sandbox is first marked."""
    body = ast.parse(server_source()).body
    for name in CHECKPOINT_MODULES:
        body += ast.parse(checkpoint_source(name)).body
    names = [
        target.id
        for node in body
        for assigned in (node.targets if isinstance(node, ast.Assign) else [])
        for target in ast.walk(assigned)
        if isinstance(target, ast.Name)
    ]
    names += [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names.remove("CHECKPOINT")  # empty in its module, and what it is in the one file
    assert sorted(names) == sorted(set(names))
    server = ROOT / "sandbox" / "server"
    files = {str(path.relative_to(server).with_suffix("")) for path in server.rglob("*.py") if path.stem != "__init__"}
    named = [f"checkpoint/{name}" for names in CHECKPOINT_MODULES.values() for name in names]
    assert files == {*MODULES, *named}


def test_the_server_needs_only_the_standard_library() -> None:
    optional = {"IPython", "traitlets", "cloudpickle"}
    sources = [server_source(), *map(checkpoint_source, CHECKPOINT_MODULES)]
    for node in [node for source in sources for node in _run_nodes(ast.parse(source))]:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            assert module.split(".")[0] in sys.stdlib_module_names | optional, module


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All but what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from _run_nodes(node)


def test_the_command_line_checks_a_kind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandbox", "selfcheck", "--kind", "local", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if " ok " not in line]
    assert all("ipython" in line for line in failed), done.stdout + done.stderr
    listed = [sys.executable, "-m", "sandbox", "list", "--state-dir", str(tmp_path)]
    assert subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.anyio
async def test_the_fake_plays_its_script_and_remembers_the_calls() -> None:
    provider = FakeProvider(["hello\n", ShellResult(output="", exit_code=2), SandboxGone("died")])
    sandbox = await provider.create(SandboxSpec(owner="job:1"))
    assert isinstance(sandbox, Sandbox)
    assert (await sandbox.bash("echo hello")).output == "hello\n"
    assert (await sandbox.bash("false")).exit_code == 2
    with pytest.raises(SandboxGone):
        await sandbox.bash("true")
    assert [call.argument for call in provider.calls] == ["echo hello", "false", "true"]
    await sandbox.close()
    assert not provider.alive
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.handle)


@pytest.mark.anyio
async def test_the_fake_can_answer_by_function() -> None:
    def script(call: FakeCall) -> object:
        return call.argument.upper() if call.method == "ipython" else f"ran {call.argument[0]}"

    provider: SandboxProvider = FakeProvider(script)
    sandbox = await provider.create(SandboxSpec(owner="job:1"))
    assert (await sandbox.ipython("x")).output == "X"
    assert (await sandbox.run(["ls"])).stdout == b"ran ls"
    await sandbox.write_file("a", b"1")
    assert await sandbox.read_file("a") == b"1"
