"""Checkpoints: shell, kernel and editor of a restored sandbox are those of the saved one, and what is lost is said."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import CannotRestore, SandboxBusy, SandboxError, SandboxTaken
from sandbox.fake import FakeProvider
from sandbox.lifetime.client import attach
from sandbox.protocol import EditorCommand, Mount, Sandbox, SandboxSpec
from sandbox.server.acts import Acts, NotQuiet
from sandbox.server.kernel import OBEY_S
from tests.sandbox.checkpoints import carry_over, pair
from tests.sandbox.conftest import ISOLATED, Create

pytestmark = pytest.mark.anyio
everywhere = pytest.mark.parametrize("kind", ISOLATED, indirect=True)
one_kind = pytest.mark.parametrize("kind", ["bubblewrap"], indirect=True)
LIBRARIES = Path(pytest.__file__).parents[1]

SHELL = r"""
mkdir -p "/tmp/odd dir"; pushd /tmp >/dev/null; pushd "/tmp/odd dir" >/dev/null; cd /workspace; cd - >/dev/null
umask 027; shopt -s extglob nullglob; set -o pipefail; set -u; set -- one "two three" ''
plain='a "quoted" $value `here`'; export exported=$'line one\nline two'; declare -i number=5; declare -r fixed=yes
declare -a list=(1 "two words" [7]=seven); declare -A map=([key]=value ["a b"]=$'c\nd'); lower=x; declare -l lower=ABC
target=there; declare -n name=target; declare unset_yet; unset TERM; OPTIND=4
f() { echo "f: $plain $*"; case $1 in @(x|y)) echo matched;; esac; }
g() { cat <<END
from $FUNCNAME: $exported
END
}
export -f f; declare -ft g
alias ll='ls -l' f2='f "x"'; trap 'echo caught' USR1; trap 'echo "bye
now"' EXIT; complete -W "a b" f; ulimit -S -n 77
"""
SAID = r"""
pwd; dirs -l; echo "$OLDPWD"; umask; shopt -p; set +o; echo $# "$@"; declare -p plain exported number fixed
declare -p list map lower
declare -p target name OPTIND; declare -p unset_yet TERM 2>&1; f x; g; alias; trap -p; complete -p
declare -F; declare -f; env | sort | grep -v ^_=; number=number+2; echo $number; ulimit -S -n
"""


async def said(box: Sandbox, command: str) -> str:
    return (await box.bash(command)).output


@everywhere
async def test_the_shell_is_restored(create: Create) -> None:
    one, other = await pair(create)
    await one.bash(SHELL)
    saved = await one.save()
    assert saved.lost == ()
    expected = await said(one, SAID)
    assert "matched" in expected
    assert saved.data is not None
    await other.restore(saved.data)
    assert await said(other, SAID) == expected
    assert await said(other, "kill -USR1 $$; echo end") == "caught\nend\n"


@one_kind
async def test_what_the_shell_was_at_the_mark_is_not_brought_along(create: Create) -> None:
    """Variables that differ between two sandboxes by themselves, such as an address, stay as they are."""
    boxes = []
    for number in ("1", "2"):
        box = await create(f"job:{number}", environment={"ADDRESS": number})
        await box.bash("begun=1; h() { :; }; alias a=b; trap 'echo' USR2; cd /tmp")
        await box.mark()
        boxes.append(box)
    await boxes[0].bash("unset begun; unset -f h; unalias a; trap - USR2; other=1")
    await carry_over(boxes[0], boxes[1])
    assert await said(
        boxes[1], "echo $ADDRESS ${begun-none} $other; pwd; declare -F; alias; trap -p"
    ) == "2 none 1\n/tmp\n" + ("declare -fr __prorl_done\ndeclare -fr __prorl_state\n")


@one_kind
async def test_a_shell_in_posix_mode_is_restored(create: Create) -> None:
    """It names all signals that have no trap."""
    one, other = await pair(create)
    await one.bash("set -o posix; trap 'echo caught' USR1")
    saved = await one.save()
    assert saved.lost == ()
    assert saved.data is not None
    await other.restore(saved.data)
    assert await said(other, "kill -USR1 $$; shopt -o posix") == "caught\nposix          \ton\n"


@one_kind
async def test_an_err_trap_hears_nothing_of_what_the_server_says_to_the_shell(create: Create) -> None:
    """Behind each command, and at each look: its exit code is kept without a failure. The second command is heard of
    twice by itself, as any is that fails within an `eval`.
    """
    box = await create()
    await box.bash("trap 'echo error >>heard' ERR; (exit 3)")
    await box.mark()
    assert await said(box, "echo $?") == "3\n"
    await box.bash("(exit 4)")
    await box.save()
    assert await said(box, "echo $?; cat heard") == "4\nerror\nerror\nerror\n"


@one_kind
async def test_a_look_at_the_shell_changes_nothing_in_it(create: Create) -> None:
    box = await create()
    await box.bash("trap 'echo error' ERR; set -o history; echo x >y; (exit 3)")
    await box.mark()
    assert await said(box, "echo $?; set +o | grep errexit") == "3\nset +o errexit\n"
    await box.bash("set -e; false || true")
    await box.save()
    assert await said(box, "echo $-; set +e") in ("ehimBHs\n", "ehimBs\n")
    assert (await box.save()).lost == ()


@one_kind
@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ('sleep 1000 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done', "process sleep ("),
        ("exec 7>/workspace/log", "descriptor 7 of the shell: /workspace/log"),
        ("exec 7>/workspace/log", "/workspace/log, which the shell has open to write"),
        ("mkdir away; cd away; rmdir ../away", "the shell's directory: /workspace/away does not lead there"),
        ("mkdir a; cd a; mv ../a ../b; mkdir ../a", "the shell's directory: /workspace/a does not lead there"),
        ("mkdir a b; ln -s a l; cd l; ln -sfn b ../l", "the shell's directory: /workspace/l does not lead there"),
        ("mkdir a; cd a; chmod 0 .", "the shell's directory: /workspace/a does not lead there, or cannot be entered"),
        ("unset DIRSTACK", "the shell's state: it has lost the name of its directory"),
        ("trap 'true' DEBUG", "the shell's state: it has a DEBUG trap, which also what looks at it sets off"),
        ("read line", "the shell's state: a command has not ended"),
    ],
)
async def test_what_of_the_shell_cannot_be_kept_is_said(create: Create, command: str, lost: str) -> None:
    box, _ = await pair(create)
    await box.bash(command, timeout_s=2)
    told = (await box.save()).lost
    assert any(line.startswith(lost) for line in told), told


@one_kind
async def test_a_shell_that_has_ended_takes_its_state_along(create: Create) -> None:
    one, other = await pair(create)
    number = (await said(one, "x=1; cd /tmp; echo $$")).strip()
    before = await one.save()
    await one.run(["sh", "-c", f"kill -9 {number}; while test -e /proc/{number}; do sleep 0.05; done"])
    after = await one.save()
    assert (after.lost, after.digest == before.digest, after.data is None) == ((), False, False)
    assert "the shell ended with exit code 137" in await said(one, "y=2")
    await carry_over(one, other)
    assert await said(other, "echo $x $y; pwd") == await said(one, "echo $x $y; pwd") == "2\n/tmp\n"


KERNEL = r"""
import math, os, random, sys, dataclasses, decimal, functools, abc, collections, datetime
import xml.dom.minidom
number, text, both = 1, "two", [[1], [2]]
shared = both[0]
counter = collections.Counter("hello")
when = datetime.datetime(2026, 1, 2)
later = 1

def uses(n): return n + later
def outer():
    count = 0
    def up():
        nonlocal count
        count += 1
        return count
    def now(): return count
    return up, now
up, now = outer()
up()
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def default(a, *rest, b=5, **more) -> int:
    "Words."
    return a + b
default.note = "kept"

class Base(abc.ABC):
    made = []
    @abc.abstractmethod
    def m(self): ...
class Child(Base):
    def __init__(self): super().__init__(); self.x = later
    def m(self): return uses(1)
    @property
    def p(self): return self.x
    @staticmethod
    def s(): return later
    @classmethod
    def c(cls): return cls.__name__
@dataclasses.dataclass
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)
child, point = Child(), Point(1)
child.friend = child
bound = child.m
part = functools.partial(uses, 3)
anonymous = lambda n: n * later
os.environ["ADDED"] = "yes"; os.environ.pop("TERM", None)
os.makedirs("/workspace/sub", exist_ok=True); os.chdir("/workspace/sub"); sys.path.append("/workspace/sub")
open("/workspace/sub/local_module.py", "w").write("value = 3\ndef f(): return value\n")
import local_module
from local_module import f as imported_f
random.seed(4); drawn = random.random()
decimal.getcontext().prec = 7; sys.setrecursionlimit(4321); former = os.umask(0o27)
"""
TOLD = r"""
print(decimal.Decimal(1) / 3, sys.getrecursionlimit(), former, os.umask(0o27))
print(number, text, both, shared is both[0], counter.most_common(1), when)
print(uses(1), up(), now(), up(), now(), fib(10), default(1), default.note, default.__doc__)
later = 100
print(uses(1), child.m(), child.p, Child.s(), Child.c(), bound(), part(), anonymous(2), child.friend is child)
print(point, Point(2) == Point(2), dataclasses.fields(Point)[1].name, dataclasses.asdict(point))
print(os.environ["ADDED"], os.environ.get("TERM"), os.getcwd(), sys.path[-1], imported_f(), local_module.value)
print(isinstance(child, Base), random.random(), xml.dom.minidom.Document, math.pi)
try: Base()
except TypeError: print("abstract")
1 / 0
"""


@pytest.mark.parametrize("cells", ["ipython", "plain", "cloudpickle"])
@everywhere
async def test_the_kernel_is_restored(kind: str, create: Create, cells: str, tmp_path: Path) -> None:
    options = _with_cells(cells, kind)
    one, other = await pair(create, **options)
    assert (await one.ipython(KERNEL, timeout_s=60)).output == ""
    saved = await one.save()
    assert saved.lost == (), saved.lost
    expected = (await one.ipython(TOLD)).output
    assert expected.startswith("0.3333333 4321 18 23\n")
    assert "abstract" in expected
    assert saved.data is not None
    await other.restore(saved.data)
    assert (await other.ipython(TOLD)).output == expected


def _with_cells(cells: str, kind: str) -> dict[str, Any]:
    if cells == "cloudpickle":
        mount = Mount(source=str(LIBRARIES / "cloudpickle"), target="/workspace/.lib/cloudpickle")
        return {"mounts": (mount,), "environment": {"PYTHONPATH": "/workspace/.lib"}}
    return {}


NUMPY = """
import numpy as np
from enum import Enum
from typing import NamedTuple
class Colour(Enum):
    RED = 1
class Pair(NamedTuple):
    a: int
    b: int = 2
    def total(self): return self.a + self.b + offset
offset, array, view = 1, np.arange(6.0).reshape(2, 3), None
view, pair, colour = array[1], Pair(1), Colour.RED
np.random.seed(3); drawn = np.random.rand()
generator = np.random.default_rng(5)
"""
NUMPY_TOLD = """
offset = 10
print(array.sum(), view, pair, pair.total(), colour is Colour.RED, np.random.rand(), generator.random())
"""


@one_kind
async def test_with_cloudpickle_and_numpy_in_the_image_more_is_restored(create: Create) -> None:
    mounts = [
        Mount(source=str(LIBRARIES / name), target=f"/opt/library/{name}")
        for name in ("cloudpickle", "numpy", "numpy.libs")
        if (LIBRARIES / name).is_dir()
    ]
    one, other = await pair(create, mounts=mounts, environment={"PYTHONPATH": "/opt/library"})
    shown = await one.ipython(NUMPY, timeout_s=60)
    assert shown.output == ""
    saved = await one.save()
    assert saved.lost == (), saved.lost
    expected = (await one.ipython(NUMPY_TOLD)).output
    assert expected.startswith("15.0 ")
    assert saved.data is not None
    await other.restore(saved.data)
    assert (await other.ipython(NUMPY_TOLD)).output == expected


@one_kind
async def test_names_that_cannot_be_kept_are_said_and_the_others_are_kept(create: Create) -> None:
    one, other = await pair(create)
    await one.ipython(
        "import threading, functools, types, enum\nkept = [1]\nfile = open('/workspace/f', 'w')\n"
        "lock = threading.Lock()\n"
        "drawing = (n for n in range(3))\n@functools.lru_cache\ndef cached(n): return n\n"
        "module = types.ModuleType('made')\nbig = bytes(3 << 20)\nclass Kind(enum.Enum): A = 1\n"
        "waits = threading.Event()\nthread = threading.Thread(target=waits.wait, daemon=True, name='mine')\n"
        "thread.start()"
    )
    saved = await one.save(max_bytes=2 << 20)
    told = [line.partition(":")[0] for line in saved.lost]
    assert sorted(told) == [
        "/workspace/f, which the kernel has open to write",
        *(f"name {name} of the kernel" for name in ("Kind", "big", "cached", "drawing", "file", "lock", "module")),
        *(f"name {name} of the kernel" for name in ("thread", "waits")),
        "thread mine of the kernel",
    ]
    assert saved.data is not None
    await other.restore(saved.data)
    assert (await other.ipython("print(kept, functools.__name__, 'lock' in globals())")).output == (
        "[1] functools False\n"
    )


@one_kind
async def test_a_kernel_in_a_directory_that_it_could_not_enter_again_is_not_kept(create: Create) -> None:
    box, _ = await pair(create)
    await box.ipython("import os; os.mkdir('shut'); os.chdir('shut'); os.chmod('.', 0)")
    told = (await box.save()).lost
    assert any("the kernel's directory /workspace/shut cannot be entered" in line for line in told), told


@one_kind
async def test_the_kernel_of_the_mark_gives_way_to_the_saved_one(create: Create) -> None:
    boxes = []
    for number in (1, 2):
        box = await create(f"job:{number}")
        await box.ipython("begun, dropped = 1, 2")
        assert list(await box.mark()) == []
        boxes.append(box)
    assert (await boxes[0].save()).data is None
    await boxes[0].ipython("del dropped; begun = 5")
    await carry_over(boxes[0], boxes[1])
    assert (await boxes[1].ipython("begun, 'dropped' in globals()")).output == "(5, False)\n"


@one_kind
async def test_a_kernel_that_has_ended_takes_its_names_along(create: Create) -> None:
    one, other = await pair(create)
    number = (await one.ipython("import os; x = 1; print(os.getpid())")).output.strip()
    assert (await one.save()).data is not None
    await one.run(["sh", "-c", f"kill -9 {number}; while test -e /proc/{number}; do sleep 0.05; done"])
    await carry_over(one, other)
    assert (await other.ipython("'x' in globals()")).output == "False\n"
    assert "the kernel was killed by signal 9" in (await one.ipython("1")).output


@everywhere
async def test_edits_can_be_undone_in_the_restored_sandbox(create: Create) -> None:
    one, other = await pair(create)
    path = "/workspace/file"
    await one.edit(EditorCommand(command="create", path=path, file_text="old"))
    await one.edit(EditorCommand(command="str_replace", path=path, old_str="old", new_str="new"))
    await carry_over(one, other)
    assert (await other.edit(EditorCommand(command="undo_edit", path=path))).ok
    assert (await other.read_file(path)).startswith(b"old")
    assert (await other.edit(EditorCommand(command="undo_edit", path=path))).ok
    assert await said(other, f"ls {path} 2>&1 | wc -l; test -e {path}; echo $?") == "1\n1\n"


@everywhere
async def test_nothing_is_saved_while_something_runs(create: Create) -> None:
    box, _ = await pair(create)
    for act in (box.bash("touch a; sleep 60"), box.named("1.0").bash("touch a; sleep 60"), box.run(["sleep", "60"])):
        work = asyncio.ensure_future(act)
        async with asyncio.timeout(20):
            while not work.done():
                try:
                    await box.save()
                except SandboxBusy:
                    break
        with pytest.raises(SandboxBusy, match="still runs; wait until it ends"):
            await box.mark()
        await box.interrupt()
        await asyncio.wait([work], timeout=20)
    assert (await box.save()).lost == ()


def test_acts_and_rest_exclude_each_other() -> None:
    acts, running, ends = Acts(), threading.Event(), threading.Event()

    def run(_: object) -> tuple[dict[str, Any], bytes]:
        running.set()
        ends.wait(20)
        return {}, b""

    with ThreadPoolExecutor() as threads:
        first = threads.submit(acts.once, {"act": "1.0/0"}, run)
        assert running.wait(20)
        with pytest.raises(NotQuiet, match=r"act 1\.0/0 still runs"):
            acts.rest().__enter__()
        ends.set()
        first.result(20)
        running.clear()
        with acts.rest():
            second = threads.submit(acts.once, {"act": "1.1/0"}, run)
            landed = threads.submit(acts.land, {"act": "1.2/0"}, running.set)
            with pytest.raises(NotQuiet, match="it is being saved or restored"):
                acts.rest().__enter__()
            assert not running.wait(0.3)
        second.result(20)
        assert landed.result(20)


@one_kind
async def test_what_is_written_meanwhile_is_said_and_comes_with_the_next_save(create: Create) -> None:
    """A process writes all the time: whatever the archive has of its file is no state that ever was."""
    one, _ = await pair(create)
    await one.bash("head -c 20000000 /dev/zero >big; (while :; do date +%N >>log; done) & echo $! >pid; disown")
    lost = (await one.save()).lost
    assert any(line.startswith("process bash (") for line in lost), lost
    assert "/workspace/log changed while it was saved" in lost
    await one.bash("kill $(cat pid); while kill -0 $(cat pid) 2>/dev/null; do :; done")
    await settled(one)
    again = await one.save()
    assert (again.lost, again.data is None) == ((), False)
    assert (await one.save()).data is None


async def settled(box: Sandbox) -> None:
    """Nothing but the tools lives."""
    async with asyncio.timeout(20):
        while (await box.run(["sh", "-c", "cat /proc/[0-9]*/comm | grep -cE '^(sleep|date)$'"])).stdout != b"0\n":
            await asyncio.sleep(0.05)


@one_kind
async def test_an_attempt_that_another_has_followed_neither_saves_nor_restores(create: Create) -> None:
    one, other = await pair(create)
    await one.bash("echo >file")
    saved = await one.save()
    assert saved.data is not None
    await other.fence(1, "a")
    later = await attach(other.handle, kind=other.handle.kind, node=other.handle.node)
    await later.fence(2, "b")
    for call in (other.mark(), other.save(), other.restore(saved.data)):
        with pytest.raises(SandboxTaken):
            await call
    await later.restore(saved.data)
    assert await said(later, "ls") == "file\n"


@one_kind
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("damaged", "the checkpoint is damaged"),
        ("short", "the checkpoint is damaged"),
        ("none", "this is no checkpoint"),
        ("later schema", "has schema 2; this sandbox knows 1"),
        ("used", "this sandbox is no fresh one"),
        ("began otherwise", "the saved sandbox began with other files in /workspace"),
        ("not marked", "its beginning was not marked"),
        ("a kernel that fails", "the kernel: RuntimeError: not here"),
        ("a shell that refuses", "it has not taken REFUSED"),
    ],
)
async def test_what_cannot_be_restored_is_refused_and_spoils_the_sandbox(create: Create, what: str, why: str) -> None:
    one, other = await pair(create)
    await one.bash("echo hello >file")
    if what == "a kernel that fails":
        await one.ipython(
            "class Odd:\n    def __reduce__(self): return exec, ('raise RuntimeError(\"not here\")',)\n"
            "odd = Odd()\ndel Odd"
        )
    if what == "a shell that refuses":
        await other.bash("readonly REFUSED=1")
        await other.mark()
        await one.bash("REFUSED=2")
    data = (await one.save()).data
    assert data is not None
    if what == "damaged":
        data = data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]
    if what == "short":
        data = data[:-1]
    if what == "none":
        data = b"hello"
    if what == "later schema":
        data = data[:17] + b"\2" + data[18:]
    if what == "used":
        await other.bash("echo >mine")
    if what == "began otherwise":
        await other.bash("echo >mine")
        await other.mark()
    if what == "not marked":
        other = await create("job:3")
    with pytest.raises(CannotRestore, match=why):
        await other.restore(data)
    with pytest.raises(SandboxError, match="a checkpoint was not restored, so this sandbox is of no use"):
        await other.bash("true")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("apptainer-without-python", "all of it: the image has no Python"),
        ("bubblewrap-without-python", "all of it: the image has no Python"),
        ("local", "all of it: its files are its host's own"),
    ],
    indirect=["kind"],
)
async def test_a_kind_without_checkpoints_says_so(create: Create, why: str) -> None:
    box = await create()
    assert list(await box.mark()) == [why]
    saved = await box.save()
    assert (saved.data, saved.lost) == (None, (why,))
    with pytest.raises(CannotRestore):
        await box.restore(b"")
    assert await said(box, "echo still here") == "still here\n"


@one_kind
async def test_a_sandbox_that_was_never_marked_has_nothing_to_save(create: Create) -> None:
    box = await create()
    assert (await box.save()).lost == ("all of it: its beginning was not marked",)


async def test_the_fake_has_checkpoints_of_its_files() -> None:
    provider = FakeProvider(["ok"])
    one, other, third = [await provider.create(SandboxSpec(owner="job:1")) for _ in range(3)]
    for box in (one, other, third):
        box.files["/begun"], box.files["/gone"] = b"1", b"2"
        assert list(await box.mark()) == []
    assert (await one.save()).data is None
    await one.write_file("/new", b"3")
    del one.files["/gone"]
    one.lost = ("process sleep (7)",)
    assert (await one.save(max_bytes=0)).too_large
    saved = await one.save()
    assert (saved.files, saved.lost) == (2, ("process sleep (7)",))
    assert saved.data is not None
    assert (await one.save()).data is None
    await other.restore(saved.data)
    assert other.files == one.files
    assert (await other.save()).digest == saved.digest
    with pytest.raises(CannotRestore):
        await third.restore(b"hello")
    with pytest.raises(SandboxError):
        await third.bash("true")


@one_kind
async def test_a_save_that_nobody_waits_for_any_more_holds_no_act_up(create: Create) -> None:
    """An agent's own object takes as long as it likes to be pickled. What the cell has made stays."""
    box, _ = await pair(create)
    reduce = "open('/tmp/begun', 'w').close(); time.sleep(100)"
    cell = f"import time\nclass Slow:\n    def __reduce__(self):\n        {reduce}\nslow, kept = Slow(), 7"
    assert (await box.ipython(cell)).ok
    saving = asyncio.create_task(box.save())
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError):  # a read is no act, which would wait for the save
                await box.read_file("/tmp/begun")
                break
            await asyncio.sleep(0.05)
    saving.cancel()
    began = asyncio.get_running_loop().time()
    assert (await box.named("1.0").ipython("print(kept)")).output == "7\n"
    assert asyncio.get_running_loop().time() - began < OBEY_S / 2


@one_kind
async def test_an_archive_that_was_not_kept_is_given_again_to_who_lacks_it(create: Create) -> None:
    """Else a state that could not be kept once, for a process that ran or a disk that was full, is never kept."""
    box, _ = await pair(create)
    number = (await said(box, "echo x >file; sleep 1000 & echo $!")).splitlines()[-1]
    first = await box.save(known="")
    assert (first.lost != (), first.data is not None) == (True, True)
    assert (await box.save(known="")).data is None, "what cannot be kept now is not packed each time"
    await said(box, f"kill {number}; wait")
    again = await box.save(known="")
    assert (again.lost, again.data is None) == ((), False)
    later = await box.save(known=again.digest)
    assert (later.data, later.digest) == (None, again.digest)
    assert (await box.save(known="another")).data == again.data
