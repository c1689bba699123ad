"""What keeps a copy of a living sandbox and its source apart. Each test has a control without the guard."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import CannotCopy, CannotRestore
from sandbox.isolators import payload
from sandbox.isolators.layers.copying import Copies
from sandbox.protocol import Sandbox
from tests.sandbox.checkpoints import pair
from tests.sandbox.conftest import Create
from tests.sandbox.test_checkpoint import said
from tests.sandbox.test_layers import MAPPED, fresh

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)]
Change = Callable[[str, str], None]
STACKER = "isolators/layers/stacker"
SHUT = "    shut([place.path for place in changed])\n"
OVERLAY = "        attach(layer, path)\n        attach(overlay, path)\n    for place in passed:\n"
REST = "        with tools.acts.rest(wait_s), contextlib.ExitStack() as held:\n"
REOPEN = '        heard(*told(lambda _: reopen(request["source"], paths)))\n'


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Iterator[Change]:
    """Changes a text of the programs that are sent, once."""
    original, changes = payload._text, dict[str, str]()
    forget: list[Any] = []
    caches = (payload.server_source, payload.server_code)

    def text(modules: Iterable[str]) -> str:
        made = original(modules)
        for old, new in changes.items():
            made = made.replace(old, new)
        return made

    def add(old: str, new: str) -> None:
        server, stacker = (original([name]).count(old) for name in ("server/checkpoint/checkpoints", STACKER))
        assert server + stacker == 1, f"it has changed: {old}"
        changes[old] = new
        forget.extend(caches if server else ())
        for each in forget:
            each.cache_clear()

    monkeypatch.setattr(payload, "_text", text)
    yield add
    for each in forget:
        each.cache_clear()


@pytest.mark.parametrize("guarded", [True, False])
async def test_what_was_sealed_is_shut(create: Create, copies: Copies, change: Change, *, guarded: bool) -> None:
    """The control leaves it open: what the source's kernel writes through a mapping then is in the copy."""
    if not guarded:
        change(SHUT, "")
    one, other = await pair(create)
    assert (await one.ipython(MAPPED)).ok
    if guarded:
        with pytest.raises(CannotCopy, match="/workspace is open to be written"):
            await copies.copy(one.handle, other, turn=-1)
        return
    await copies.copy(one.handle, other, turn=-1)
    assert await said(other, "head -c 4 /workspace/m | tr '\\0' .") == "...."
    assert (await one.ipython("ctypes.memmove(there, b'mine', 4)")).ok
    assert await said(other, "head -c 4 /workspace/m") == "mine"


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_call_that_comes_while_files_are_sealed_waits(
    create: Create,
    copies: Copies,
    change: Change,
    *,
    guarded: bool,
) -> None:
    """The control lets it begin: what it writes to is shut."""
    change(SHUT, f"{SHUT}    import time; time.sleep({1 if guarded else 3})\n")
    if not guarded:
        change(REST, "        with contextlib.ExitStack() as held:\n")
        change("if not lock.acquire(blocking=False):", "if False:")
        change("held.callback(lock.release)", "pass")
    one, other = await pair(create)
    await one.named("0.0").bash("echo 0 >/workspace/n")
    copying = asyncio.create_task(copies.copy(one.handle, other, turn=0))
    while " /workspace ro," not in await asyncio.to_thread(Path(f"/proc/{one.handle.pid}/mountinfo").read_text):
        assert not copying.done()
        await asyncio.sleep(0.01)
    done = await one.named("0.1").bash("echo 1 >>/workspace/n")
    assert (done.exit_code == 0) is guarded, done
    with suppress(CannotCopy, CannotRestore):
        await copying
    assert await said(one, "cat /workspace/n") == "0\n1\n" or not guarded


FAULTS = {"refused": "raise OSError(28, 'no room for a mount')", "killed": "os.kill(os.getpid(), 9)"}


@pytest.mark.parametrize(
    ("fault", "step", "guarded"),
    [
        *((fault, step, True) for fault in FAULTS for step in ("shut", "layer", "overlay")),
        ("refused", "shut", False),
        ("killed", "layer", False),
    ],
)
async def test_a_seal_that_ends_between_its_steps_leaves_the_source_as_it_was(
    create: Create,
    copies: Copies,
    change: Change,
    fault: str,
    step: str,
    *,
    guarded: bool,
) -> None:
    """All places are shut; or one has a layer without files over it; or one is sealed and the others are not.

    The control does not open them again.
    """
    layer, overlay, rest = OVERLAY.splitlines(keepends=True)
    fails = f"        {FAULTS[fault]}\n"
    lines = {"shut": [fails, layer, overlay], "layer": [layer, fails, overlay], "overlay": [layer, overlay, fails]}
    change(OVERLAY, "".join([*lines[step], rest]))
    if not guarded:
        change(REOPEN, "")
    one, other = await pair(create)
    await one.bash("cd /workspace; echo 1 >n; echo 1 >/tmp/n; echo 1 >/var/tmp/n")
    with pytest.raises((CannotCopy, CannotRestore)):
        await copies.copy(one.handle, other, turn=-1)
    assert (await works(one)) is guarded


async def works(box: Sandbox) -> bool:
    done = await box.bash("for n in n /tmp/n /var/tmp/n; do echo 2 >>$n && cat $n || exit 1; done")
    return (done.exit_code, done.output.split()) == (0, ["1", "2"] * 3)


async def test_forks_of_forks_are_right_at_any_depth(create: Create, copies: Copies) -> None:
    """A place has 16 layers at most. The next one begins with a checkpoint, and has none."""
    one, refused = await fresh(create), 0
    for level in range(20):
        await one.bash(f"cd /workspace; echo {level} >>n; echo {level} >{level}; rm -f {level - 3}; level={level}")
        made = await fresh(create)
        try:
            await copies.copy(one.handle, made, turn=-1)
        except CannotCopy as error:
            assert "16 layers already" in str(error)  # noqa: PT017 - one of two right ends
            refused += 1
            saved = await one.save()
            assert (saved.lost, saved.data is not None) == ((), True)
            await made.restore(saved.data or b"")
        await one.close()
        one = made
    expected = "".join(f"{name}\n" for name in [*range(17, 20), "n"])
    assert await said(one, "ls -1 | sort -V; cat n; echo $level") == expected + "".join(
        f"{level}\n" for level in [*range(20), 19]
    )
    assert refused == 1
