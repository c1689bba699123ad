"""Copies of living sandboxes by layers: the copy is what the source was, and each then has changes of its own."""

import asyncio
from pathlib import Path

import pytest

from sandbox.errors import CannotCopy, CannotRestore
from sandbox.fake import FakeProvider
from sandbox.isolators.layers import stacking
from sandbox.isolators.layers.copying import Copies, beside
from sandbox.isolators.layers.stacking import Stacker
from sandbox.protocol import EditorCommand, Sandbox, SandboxLimits, SandboxSpec
from tests.sandbox.checkpoints import pair, python, tree
from tests.sandbox.conftest import ISOLATED, Create
from tests.sandbox.test_checkpoint import SAID, SHELL, said

pytestmark = pytest.mark.anyio
everywhere = pytest.mark.parametrize("kind", ISOLATED, indirect=True)
one_kind = pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
FILES = r"""
cd /workspace; mkdir -p d/e "odd-dir"; echo one >d/e/f; head -c 3000000 /dev/urandom >big; ln big linked; ln -s big link
mkfifo pipe; chmod 750 d; chmod 000 "odd-dir"; touch -d 2020-01-01 d/e/f; echo x >/tmp/x; chmod 700 /var/tmp
mkdir -p /home/agent/.config; echo set >/home/agent/.config/rc
"""

MAPPED = """
import ctypes, os
number = os.open('/workspace/m', os.O_RDWR | os.O_CREAT)
os.ftruncate(number, 4096)
map = ctypes.CDLL(None).mmap
map.restype, map.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
there = map(None, 4096, 3, 1, number, 0)
os.close(number)
del map
"""


async def fresh(create: Create, **options: object) -> Sandbox:
    box = await create("job:3", **options)
    await box.mark()
    return box


@everywhere
async def test_a_copy_has_the_files_and_each_then_its_own(create: Create, copies: Copies) -> None:
    one, other = await pair(create)
    assert (await one.bash(FILES)).exit_code == 0
    before = await tree(one)
    await copies.copy(one.handle, other, turn=-1)
    assert await tree(other) == before
    assert await tree(one) == before
    await one.bash("cd /workspace; echo mine >>d/e/f; rm big; mkdir new")
    await other.bash("cd /workspace; echo its >>d/e/f; rm -r d; mkdir d; touch d/only")
    assert await said(one, "ls -1 /workspace; cat d/e/f") == "d\nlink\nlinked\nnew\nodd-dir\npipe\none\nmine\n"
    assert await said(other, "ls -1A /workspace d") == "/workspace:\nbig\nd\nlink\nlinked\nodd-dir\npipe\n\nd:\nonly\n"


@everywhere
async def test_shell_kernel_and_editor_come_along_and_the_sources_stay(create: Create, copies: Copies) -> None:
    one, other = await pair(create)
    await one.bash(SHELL)
    await one.ipython("import os; os.chdir('/tmp'); names = {'a': [1]}; f = lambda: names")
    edit = EditorCommand(command="create", path="/workspace/edited", file_text="text\n")
    assert (await one.edit(edit)).ok
    await copies.copy(one.handle, other, turn=-1)
    expected = await said(one, SAID)
    assert "matched" in expected
    assert await said(other, SAID) == expected
    for box in (other, one):
        cell = await box.ipython("open('here', 'w').close(); print(os.getcwd(), f())")
        assert cell.output == "/tmp {'a': [1]}\n"
        assert await said(box, "touch ./there; echo $?; ls /tmp/here") == "0\n/tmp/here\n"
        assert (await box.edit(EditorCommand(command="undo_edit", path="/workspace/edited"))).ok


@everywhere
async def test_copies_of_copies_outlive_what_they_are_copies_of(create: Create, copies: Copies) -> None:
    """A place that has not changed since is not sealed again, and one that has is."""
    one, other = await pair(create)
    await one.bash("echo 1 >>/workspace/n")
    await copies.copy(one.handle, other, turn=-1)
    boxes = [one, other]
    for step in range(2, 5):
        await boxes[-1].bash(f"echo {step} >>/workspace/n; mkdir /workspace/{step}")
        for _ in range(2):
            made = await fresh(create)
            await copies.copy(boxes[-1].handle, made, turn=-1)
            boxes.append(made)
    last = boxes.pop()
    table = await asyncio.to_thread(Path(f"/proc/{last.handle.pid}/mountinfo").read_text)
    assert table.count(" prorl-layer ") == 4, "one for each time that something had changed, and its own"
    for box in boxes:
        await box.close()
    assert await said(last, "cat /workspace/n; echo 5 >>/workspace/n; ls -1 /workspace") == "1\n2\n3\n4\n2\n3\n4\nn\n"


@everywhere
async def test_directories_of_an_image_are_copied_too(create: Create, copies: Copies) -> None:
    one, other = await pair(create, writable=["/usr/share/perl5"])
    await one.bash("cd /usr/share/perl5; rm -rf Debconf; mkdir Debconf; echo mine >Debconf/mine; echo x >new")
    look = "find /usr/share/perl5 -not -type d -printf '%P %m %s %T@ %l\\n' | sort | md5sum"
    before = await said(one, look)
    await copies.copy(one.handle, other, turn=-1)
    assert await said(other, look) == before == await said(one, look)
    assert await said(other, "ls /usr/share/perl5/Debconf") == "mine\n"


@everywhere
async def test_source_and_copy_can_be_saved_and_restored(create: Create, copies: Copies) -> None:
    """Files of the source that are as they were at its mark are not saved, though they lie in a layer now."""
    prepare = "head -c 2000000 /dev/urandom >/workspace/prepared"
    one, other = await pair(create, prepare=prepare)
    await one.bash("cd /workspace; echo 1 >n; mkdir d")
    await copies.copy(one.handle, other, turn=-1)
    assert (await other.save()).data is not None, "nothing is saved that is in its layers"
    await one.bash("echo one >>n")
    await other.bash("echo other >>n; rm -r d")
    for box, most in ((one, 1_000_000), (other, 3_000_000)):
        saved = await box.save()
        assert (saved.lost, saved.content_bytes < most) == ((), True)
        third, _ = await pair(create, prepare=prepare)
        assert saved.data is not None
        await third.restore(saved.data)
        assert await said(third, "ls /workspace; cat n") == await said(box, "ls /workspace; cat n")


@one_kind
async def test_what_cannot_be_copied_leaves_both_as_they_were(create: Create, copies: Copies) -> None:
    one, other = await pair(create)
    await one.bash("echo 1 >/workspace/n")
    for begin, end, why in (
        ("sleep 1000 &", "kill %1; wait", "process sleep"),
        ("exec 7>/workspace/open", "exec 7>&-", "descriptor 7 of the shell"),
    ):
        await one.bash(begin)
        with pytest.raises(CannotCopy, match=why):
            await copies.copy(one.handle, other, turn=-1)
        await one.bash(end)
    busy = asyncio.create_task(one.bash("sleep 1; echo done"))
    while "sleep" not in await python(
        one, "import os; print([open(f'/proc/{p}/comm').read() for p in os.listdir('/proc') if p.isdigit()])"
    ):
        await asyncio.sleep(0.01)
    with pytest.raises(CannotCopy, match="still runs"):
        await copies.copy(one.handle, other, turn=-1)
    assert (await busy).output == "done\n"
    assert await said(other, "ls /workspace") == ""
    await copies.copy(one.handle, other, turn=-1)
    assert await said(other, "cat /workspace/n") == "1\n"


@one_kind
async def test_a_file_that_a_cell_has_open_to_write_is_seen_by_the_kernel_too(create: Create, copies: Copies) -> None:
    """A mapping is no descriptor that could be listed."""
    one, other = await pair(create)
    assert (await one.ipython(MAPPED)).ok
    with pytest.raises(CannotCopy, match="/workspace is open to be written"):
        await copies.copy(one.handle, other, turn=-1)
    assert await said(one, "echo 1 >/workspace/n; cat /workspace/n") == "1\n", "it is not shut"
    assert await said(other, "ls /workspace") == ""


@one_kind
async def test_a_sandbox_that_has_begun_a_later_turn_is_not_copied(create: Create, copies: Copies) -> None:
    one, other = await pair(create)
    await one.named("3.0").bash("echo 1 >/workspace/n")
    with pytest.raises(CannotCopy, match="it has begun turn 3"):
        await copies.copy(one.handle, other, turn=2)
    await copies.copy(one.handle, other, turn=3)
    assert await said(other, "cat /workspace/n") == "1\n"


@one_kind
async def test_a_sandbox_that_is_used_for_an_export_is_not_copied(create: Create, copies: Copies) -> None:
    """The last turn of its rollout has no call: what its family does then is no part of any turn."""
    one, other = await pair(create)
    await one.bash("echo before >/workspace/n")
    await one.named("0.0").bash("echo 1 >/workspace/n")
    await one.run(["touch", "/workspace/exported"])
    with pytest.raises(CannotCopy, match="used it behind turn 0"):
        await copies.copy(one.handle, other, turn=0)
    assert await said(other, "ls /workspace") == ""
    await one.named("1.0").bash("echo 2 >/workspace/n")
    await copies.copy(one.handle, other, turn=1)
    assert await said(other, "ls -1 /workspace") == "exported\nn\n"


@one_kind
async def test_calls_wait_until_the_files_are_sealed(create: Create, copies: Copies) -> None:
    """Whatever is asked of the source meanwhile, the copy has a state that it had between two calls."""
    one, other = await pair(create)
    await one.bash("cd /workspace")

    async def write() -> None:
        for number in range(60):
            done = await one.named(f"0.{number}").bash(f"echo {number} >>a; echo {number} >>b")
            assert (done.exit_code, done.output) == (0, "")

    writing = asyncio.create_task(write())
    copied = 0
    while not writing.done():
        made = await fresh(create)
        try:
            await copies.copy(one.handle, made, turn=0)
        except CannotCopy as error:
            assert "still runs" in str(error)  # noqa: PT017 - one of two right ends
        else:
            copied += 1
            assert await said(made, "cmp /workspace/a /workspace/b; echo $?") == "0\n"
        await made.close()
    await writing
    await copies.copy(one.handle, other, turn=0)
    assert await said(other, "wc -l </workspace/a; cmp a b; echo $?") == "60\n0\n"


@one_kind
async def test_several_copies_at_once_come_one_after_the_other(create: Create) -> None:
    """The children of one fork begin in several workers at the same moment."""
    one, *others = [await fresh(create) for _ in range(4)]
    await one.bash("echo 1 >/workspace/n")
    makers = [Copies() for _ in others]
    async with asyncio.TaskGroup() as group:
        for maker, other in zip(makers, others, strict=True):
            group.create_task(maker.copy(one.handle, other, turn=-1))
    for maker in makers:
        await maker.aclose()
    for other in others:
        assert await said(other, "cat /workspace/n") == "1\n"
    table = await asyncio.to_thread(Path(f"/proc/{one.handle.pid}/mountinfo").read_text)
    assert table.count(" prorl-stack ") == 1, "it was sealed once"


@one_kind
async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await pair(create)
    await one.bash("echo 1 >/workspace/n")
    stacker = Stacker()
    await stacker.warm()
    with monkeypatch.context() as hurried:
        hurried.setattr(stacking, "ANSWER_S", 0.0)
        late = await stacker.stack(0, 0, [])
        assert late.spoilt
        assert "gave no answer: it took" in late.error
    stacked = await stacker.stack(one.handle.pid, other.handle.pid, ["/workspace"])
    await stacker.aclose()
    assert (stacked.error, stacked.spoilt) == ("", False)


async def test_forks_that_begin_at_once_start_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[asyncio.subprocess.Process] = []
    start = stacking._started

    async def counted() -> asyncio.subprocess.Process:
        begun.append(await start())
        return begun[-1]

    monkeypatch.setattr(stacking, "_started", counted)
    stacker = Stacker()
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(stacker.warm())
    await stacker.aclose()
    assert len(begun) == 1


@one_kind
async def test_sealed_bytes_still_count(create: Create, copies: Copies) -> None:
    limits = SandboxLimits(disk_bytes=64 << 20)
    one, other = await pair(create, limits=limits)
    await one.bash("head -c 40M /dev/zero >/workspace/big")
    await copies.copy(one.handle, other, turn=-1)
    for box in (one, other):
        done = await box.bash("head -c 40M /dev/zero >/workspace/more")
        assert "No space left" in done.output or "over the disk limit" in done.output, done
        async with asyncio.timeout(30):
            while (await box.bash("rm -f /workspace/more")).exit_code:
                pass  # the watchdog may see the full disk only now
        assert (await box.bash("head -c 10M /dev/zero >/workspace/more")).exit_code == 0


@one_kind
async def test_a_stack_of_layers_has_an_end_and_a_checkpoint_begins_anew(create: Create, copies: Copies) -> None:
    one, other = await pair(create)
    unlike = await fresh(create)
    await unlike.bash("touch /var/tmp/x")
    for number in range(16):
        await one.bash(f"echo {number} >>/workspace/n")
        with pytest.raises(CannotCopy, match="is empty in the sandbox" if number < 15 else "16 layers already"):
            await copies.copy(one.handle, unlike, turn=-1)
    saved = await one.save()
    assert saved.data is not None
    await other.restore(saved.data)
    assert await said(other, "wc -l </workspace/n") == "16\n"


@one_kind
async def test_a_place_that_holds_another_one_is_refused(create: Create, copies: Copies) -> None:
    """A layer over it would hide the other one."""
    one, other = [await fresh(create, empty=["/workspace/inner"]) for _ in range(2)]
    await one.bash("echo 1 >/workspace/inner/n")
    with pytest.raises(CannotCopy, match="something else is mounted below /workspace"):
        await copies.copy(one.handle, other, turn=-1)
    assert await said(one, "cat /workspace/inner/n") == "1\n"


@one_kind
async def test_a_sandbox_that_is_not_here_or_of_another_kind_is_refused(create: Create, copies: Copies) -> None:
    one, other = await pair(create)
    with pytest.raises(CannotCopy, match="not, or no more, on"):
        beside(other.handle, "0" * 16)
    with pytest.raises(CannotCopy, match="not, or no more, on"):
        beside(other.handle, "../x")
    assert beside(other.handle, one.handle.sandbox_id) == one.handle
    fake = await FakeProvider().create(SandboxSpec(owner="job:1"))
    with pytest.raises(CannotCopy, match="it is of fake"):
        await copies.copy(fake.handle, other, turn=-1)
    await one.close()
    with pytest.raises(CannotCopy, match="it is gone"):
        await copies.copy(one.handle, other, turn=-1)


@one_kind
async def test_one_that_began_otherwise_is_of_no_use(create: Create, copies: Copies) -> None:
    one, _ = await pair(create, prepare="echo 1 >/workspace/n")
    other = await fresh(create)
    with pytest.raises(CannotRestore, match="began with other files in /workspace"):
        await copies.copy(one.handle, other, turn=-1)
