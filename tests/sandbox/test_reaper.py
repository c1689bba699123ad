"""What is left of sandboxes is found by labels and marks, and what belongs to others is left alone."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sandbox.host.process import descendants, start_time
from sandbox.lifetime import label, mounts
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import SandboxProvider
from tests.sandbox.conftest import Create

pytestmark = pytest.mark.anyio

MAKER = """
import asyncio, sys
from pathlib import Path
from sandbox.protocol import SandboxSpec
from sandbox.isolators.kinds import make_provider

async def main():
    provider = make_provider(sys.argv[1], node="node-1", state_dir=Path(sys.argv[2]))
    await (await provider.create(SandboxSpec(owner="first"))).close()
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(provider.create(SandboxSpec(owner="second")) for _ in range(3)))
    await asyncio.Event().wait()

asyncio.run(main())
"""
UNMOUNT = """
import subprocess, sys
from pathlib import Path
from sandbox.lifetime import label
precious, state = Path(sys.argv[1]), Path(sys.argv[2])
directory, _ = label.make_directory(state, owner="j", kind="local", node="n")
for inside in (directory / "a b", directory / "a b" / "deep"):
    inside.mkdir()
    subprocess.run(["mount", "--bind", str(precious), str(inside)], check=True)
label.remove(directory)
print(list(label.root(state).iterdir()), sorted(path.name for path in precious.iterdir()))
"""


def marked(state_dir: Path) -> list[int]:
    """Living processes that carry the mark of a sandbox below this directory."""
    sign = label.mark(state_dir).encode()
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit() and start_time(int(proc.name)):
            try:
                found += [int(proc.name)] if sign in (proc / "environ").read_bytes() else []
            except OSError:
                continue
    return found


async def test_processes_without_a_label_are_found_by_their_mark(
    create: Create, state_dir: Path, provider: SandboxProvider
) -> None:
    """As after a maker that died between starting a process and writing down which."""
    lost, kept = await create("lost"), await create("kept")
    await lost.bash("setsid sleep 301 & (setsid nohup sleep 302 >/dev/null 2>&1 &)")
    made = label.read(Path(lost.handle.directory))
    assert made is not None
    pids = [made.pid, *descendants(made.pid), *([made.front_pid] if made.front_pid else [])]
    shutil.rmtree(lost.handle.directory)
    assert await sweep(state_dir, lambda owner: owner == "kept") == [lost.handle.sandbox_id]
    async with asyncio.timeout(90):
        while [pid for pid in pids if start_time(pid)]:
            await asyncio.sleep(0.01)  # Apptainer's own process ends by itself after its sandbox
    assert (await kept.bash("echo on")).output == "on\n"
    assert await sweep(state_dir, lambda owner: owner == "kept") == []


@pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
async def test_a_maker_killed_at_any_moment_leaves_nothing(
    kind: str, state_dir: Path, provider: SandboxProvider, tmp_path: Path
) -> None:
    script = tmp_path / "maker.py"
    script.write_text(MAKER)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for delay_ms in (1, 3, 6, 10, 15, 30):
        argv = [sys.executable, str(script), kind, str(state_dir)]
        pipe = asyncio.subprocess.PIPE
        maker = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, env=env)
        assert maker.stdin is not None
        assert maker.stdout is not None
        await maker.stdout.readline()
        maker.stdin.write(b"go\n")
        await asyncio.sleep(delay_ms / 1000)  # the seeded moment
        maker.kill()
        await maker.wait()
        # A process that was started and has not got to its own program yet carries no mark: the next sweep finds it.
        async with asyncio.timeout(30):
            while marked(state_dir) or list(label.root(state_dir).iterdir()):
                await sweep(state_dir, lambda owner: False)


async def test_a_removal_that_was_cut_short_is_finished_at_once(
    create: Create, state_dir: Path, provider: SandboxProvider
) -> None:
    sandbox = await create("kept")
    directory, _ = label.make_directory(state_dir, owner="dead", kind=provider.kind, node=provider.node)
    directory.rename(directory.with_name(f".{directory.name}{label.REMOVING}"))
    await sweep(state_dir, lambda owner: True)
    assert [path.name for path in label.root(state_dir).iterdir()] == [sandbox.handle.sandbox_id]


async def test_another_services_sandboxes_are_not_touched_alive_or_dead(
    create: Create, state_dir: Path, provider: SandboxProvider
) -> None:
    theirs, ours = await create("job other j 1 run"), await create("job prorl j 1 run")
    directory, made = label.make_directory(state_dir, owner="job other j 2 run", kind=provider.kind, node=provider.node)
    label.write(directory, msgspec.structs.replace(made, maker_started="0"))
    gone = await sweep(state_dir, lambda owner: False, ours=lambda owner: owner.startswith("job prorl "))
    assert gone == [ours.handle.sandbox_id]
    assert (await theirs.bash("echo on")).output == "on\n"
    assert directory.exists()


def test_removal_unmounts_and_does_not_reach_through_mounts(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", UNMOUNT]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*argv, precious, tmp_path / "state"], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "[] ['deep', 'file']\n", done.stderr
    assert mounts.below(tmp_path) == []
