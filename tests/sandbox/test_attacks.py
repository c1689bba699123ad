"""Attacks of each class on sandboxes of both kinds, each of which succeeds where its defence is missing."""

import ast
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from sandbox.attack import limits, wire
from sandbox.attack.catalogue import Attack, attacks
from sandbox.attack.naive import GUARDS, MEETS, naive
from sandbox.attack.run import (
    CONTAINED,
    CONTROL,
    NOT_APPLICABLE,
    NOT_CONTAINED,
    SOFT,
    Attacker,
    Try,
    attack,
    on_wire,
    report,
)
from sandbox.attack.surroundings import MODULES, Surroundings
from sandbox.errors import SandboxError
from sandbox.fake import FakeProvider
from sandbox.isolators.payload import joined, server_source
from sandbox.lifetime import cgroup
from sandbox.protocol import Mount, Sandbox, SandboxLimits, SandboxProvider, SandboxSpec
from tests.sandbox.conftest import ISOLATED, TOOLS_DIR, WITHOUT_PYTHON, Create

ROOT = Path(__file__).parents[2]
isolated = pytest.mark.parametrize("kind", ISOLATED, indirect=True)
without_python = pytest.mark.parametrize("kind", WITHOUT_PYTHON, indirect=True)
EVERYWHERE = {  # their controls succeed on every machine that runs sandboxes at all
    "affinity-widen", "hide-memory", "proc-hardware", "unshare-user", "mount", "host-file", "host-process",
    "environment", "host-loopback", "setsid-daemon", "files-left", "stop-server", "second-configure", "oversize-frame",
    "half-frame", "end-mark-forgery", "kill-everything",
}  # fmt: skip
SOMEWHERE = {
    "host-key-read", "host-key-revoke", "key-note-run-to-eval", "io-uring", "userfaultfd", "bpf", "perf-event", "vsock",
    "int80-number", "filter-undo", "tiocsti", "ptrace-server", "proc-kallsyms", "proc-keys", "clone3-newuser",
    "sysv-shm", "personality-exec", "netlink-sockdiag",
}  # fmt: skip
GREEDY = {"memory-let-go", "processes"}  # `make test-security` tries all
SEALED_EVERYWHERE = {"affinity-widen", "hide-memory", "proc-hardware"}


class Undefended(Attacker):
    """Attacks on sandboxes whose seal was taken out."""

    def _provider(self, of: str, edit: Callable[[bytes], bytes] | None = None) -> SandboxProvider:
        del of
        return super()._provider(CONTROL, edit)


class Unlimited(Attacker):
    """Attacks on sandboxes that may take what they want."""

    async def _over_limits(self, chosen: Sequence[Attack], bounds: SandboxLimits) -> dict[str, Try]:
        del bounds
        return await super()._over_limits(chosen, limits.WIDE)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Sandboxes of root are another user's, who must pass."""
    return tmp_path


@isolated
def test_one_attack_of_each_class_is_contained(kind: str, state_dir: Path) -> None:
    verdicts = {
        each.attack.name: each.verdict for each in attack(kind, None, state_dir, TOOLS_DIR, EVERYWHERE | SOMEWHERE)
    }
    assert set(verdicts) == EVERYWHERE | SOMEWHERE
    assert {name for name, verdict in verdicts.items() if verdict != CONTAINED} <= SOMEWHERE, verdicts
    assert NOT_CONTAINED not in verdicts.values(), verdicts


@isolated
def test_without_the_seal_the_same_attacks_are_not_contained(
    kind: str, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        each for each in attacks() if each.name in SEALED_EVERYWHERE | {"sysv-shm", "netlink-sockdiag", "io-uring"}
    ]
    with Surroundings() as around:
        results = asyncio.run(Undefended(kind, None, state_dir, TOOLS_DIR, around).attack(chosen))
    verdicts = {each.attack.name: each.verdict for each in results}
    assert {name: verdicts[name] for name in SEALED_EVERYWHERE} == dict.fromkeys(SEALED_EVERYWHERE, NOT_CONTAINED)
    assert set(verdicts.values()) <= {NOT_CONTAINED, NOT_APPLICABLE}, verdicts
    assert report(results) == 1
    assert f"0 {CONTAINED}, " in capsys.readouterr().out


@isolated
def test_what_takes_more_than_its_limits_is_contained(kind: str, state_dir: Path) -> None:
    verdicts = {each.attack.name: each.verdict for each in attack(kind, None, state_dir, TOOLS_DIR, GREEDY)}
    without_groups = SOFT if cgroup.delegated() is None else CONTAINED
    assert verdicts == {**dict.fromkeys(GREEDY, CONTAINED), "memory-let-go": without_groups}


def test_without_its_limits_a_sandbox_contains_none_of_these(state_dir: Path) -> None:
    chosen = [each for each in attacks() if each.name in GREEDY]
    with Surroundings() as around:
        results = asyncio.run(Unlimited("bubblewrap", None, state_dir, TOOLS_DIR, around).attack(chosen))
    held = {each.attack.name for each in results if each.verdict not in {NOT_CONTAINED, SOFT}}
    assert held == set(), results


def test_what_only_control_groups_hold_is_soft_where_there_are_none(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cgroup, "delegated", lambda: None)
    results = attack("bubblewrap", None, state_dir, TOOLS_DIR, {"memory-let-go"})
    assert report(results) == 0
    told = capsys.readouterr().out
    assert "0 contained, 1 soft, 0 NOT CONTAINED" in told
    assert "--sandbox untrusted" in told


@without_python
@pytest.mark.anyio
async def test_a_sandbox_without_python_is_sealed_by_the_same_filter(create: Create) -> None:
    """Its programs are children of a server outside. The attacks bring a Python of their own."""
    sandbox = await create(mounts=(Mount(source="/usr", target="/mnt/usr"),))
    await sandbox.write_file("/tmp/attack.py", joined(MODULES))
    for program, facts, said in (
        ("open_call", {"call": "shmget"}, "ENOSYS"),
        ("open_call", {"call": "kcmp"}, "EPERM"),
        ("socket_family", {"socket": (16, 3, 4)}, "EAFNOSUPPORT"),
        ("personality_exec", {}, "EPERM"),
        ("filter_undo", {}, "ENOSYS"),
        ("hide_memory", {}, "still dumpable"),
    ):
        assert await brought(sandbox, program, facts) == {"done": False, "said": said}, program


async def brought(sandbox: Sandbox, program: str, facts: Mapping[str, object]) -> object:
    libraries = ":".join(f"/mnt/usr/lib/{machine}-linux-gnu" for machine in ("x86_64", "aarch64"))
    python = ["env", f"LD_LIBRARY_PATH={libraries}", "PYTHONHOME=/mnt/usr", "/mnt/usr/bin/python3"]
    result = await sandbox.run([*python, "/tmp/attack.py", program, json.dumps(facts)])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def on_protocol(program: str) -> Attack:
    (found,) = (each for each in attacks() if each.program == program)
    return found


@pytest.mark.parametrize(("program", "guard"), [(program, guard) for program, met in MEETS.items() for guard in met])
def test_attacks_on_the_protocol_have_no_control_where_a_guard_of_the_server_is_not_found(
    program: str, guard: str
) -> None:
    server = server_source()
    compile(naive(program, server), "server", "exec")
    with pytest.raises(SandboxError, match=f"{program!r} has no control: of {guard!r} there are 0"):
        naive(program, server.replace(GUARDS[guard][0].encode(), b"pass"))


@pytest.mark.parametrize(("program", "guard"), [(program, guard) for program, met in MEETS.items() for guard in met])
def test_the_control_of_an_attack_on_the_protocol_fails_where_a_guard_is_kept(
    program: str, guard: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is this guard that contains the attack, alone. Without it each succeeds: `EVERYWHERE`."""
    monkeypatch.setitem(MEETS, program, tuple(each for each in MEETS[program] if each != guard))
    monkeypatch.setattr(wire, "CONTROL_S", wire.PATIENCE_S)
    with Surroundings() as around:
        attacker = Attacker("bubblewrap", None, state_dir, TOOLS_DIR, around)
        ((_, found),) = asyncio.run(attacker.on_naive([on_protocol(program)])).items()
    assert found == Try(False, "refused, and the next command works")


@pytest.mark.parametrize("program", wire.PROGRAMS)
@pytest.mark.anyio
async def test_silence_proves_a_control_only_where_it_is_what_the_attack_achieves(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: Sandbox) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(wire, "PROGRAMS", {program: silent})
    monkeypatch.setattr(wire, "PATIENCE_S", 0.02)
    monkeypatch.setattr(wire, "CONTROL_S", 0.01)
    sandbox, silencing = (
        await FakeProvider().create(SandboxSpec(owner="o")),
        program in {"half_frame", "oversize_frame"},
    )
    control = await on_wire(sandbox, on_protocol(program), control=True)
    assert control == (Try(True, "no answer within 0.01 s") if silencing else Try(None, "no answer within 0.02 s"))
    assert await on_wire(sandbox, on_protocol(program)) == Try(True, "no answer within 0.02 s")


def test_no_attack_is_without_its_program_and_names_are_unique() -> None:
    names = [each.name for each in attacks()]
    assert len(names) == len(set(names)) >= 90
    defined = {node.name for node in ast.walk(ast.parse(joined(MODULES))) if isinstance(node, ast.FunctionDef)}
    assert {each.program for each in attacks()} <= defined | set(wire.PROGRAMS) | {"flood"}
    assert set(MEETS) == set(wire.PROGRAMS)


def test_the_programs_are_python_3_8(tmp_path: Path) -> None:
    ast.parse(joined(MODULES), feature_version=(3, 8))
    (tmp_path / "attack.py").write_bytes(joined(MODULES))
    command = [str(Path(sys.executable).with_name("vermin")), "--target=3.8-", "--no-tips", "--violations"]
    done = subprocess.run([*command, str(tmp_path / "attack.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_command_line_prints_the_table_and_refuses_a_kind_that_contains_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandbox", "selfcheck", "--attack", "--state-dir", str(tmp_path), "--kind"]
    done = subprocess.run([*command, "local"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1, "sandbox: 'local' sandboxes contain nothing, so there is nothing to attack: name another --kind\n",
    )  # fmt: skip
