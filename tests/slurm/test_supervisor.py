"""One supervisor acts at a time, whatever becomes of the one before."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from prorl_mq.process.crews.crew import Stopping
from prorl_mq.store.server.faults import RedisError
from slurm import __main__ as cli
from slurm import spec_file
from slurm.layout import logs
from slurm.report import notes
from slurm.script import watch_script
from slurm.spec import Deployment
from slurm.supervisor import lock as lock_module
from slurm.supervisor import places
from slurm.supervisor.lock import Busy, Superseded, Supervisor, WatchLock, exclusive, place_of
from slurm.supervisor.watch import Watch
from slurm.tasks import read_tasks
from tests.slurm.conftest import Fake

pytestmark = pytest.mark.anyio
OWN = "7|d.watch|RUNNING|n1|1:00|59:00|None\n"
BEHIND = "".join(f"{job}|d.watch|PENDING||0:00|1:00:00|Dependency\n" for job in (17, 19))


@pytest.fixture
def found(tmp_path: Path) -> Deployment:
    return spec_file.deployment({"name": "d", "shared": str(tmp_path / "shared"), "redis": {}, "watch": {}})


def asked(fake: Fake) -> list[str]:
    """The names of the jobs that were submitted, or refused."""
    sent = [call["stdin"] for call in fake.calls if call["argv"][0] == "sbatch"]
    return [text.splitlines()[1].split(".")[1] for text in sent]


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., WatchLock]:
    """Locks of one deployment: by holder, and the job that it is."""
    (tmp_path / "watch").mkdir()

    def lock(holder: str, job: str = "") -> WatchLock:
        return WatchLock(tmp_path / "watch", tmp_path / "guard", holder=holder, job=job, stale_s=30)

    return lock


def aged(directory: Path, seconds: float) -> None:
    """As if the holder had said nothing for so long."""
    state = directory / "supervisor.json"
    at = state.stat().st_mtime - seconds
    os.utime(state, (at, at))


async def test_one_stands_by_until_the_other_leaves_and_learns_what_it_knew(made: Callable[..., WatchLock]) -> None:
    first, second = made("a:1"), made("b:2")
    assert await first.hold() is not None
    assert await first.hold() is not None, "its own, renewed"
    assert await second.hold() is None
    await first.leave({"node": 12.5})
    left = await second.hold()
    assert left is not None
    assert (left.low_s, second.read().term, second.read().holder) == ({"node": 12.5}, 2, "b:2")


@pytest.mark.parametrize("fenced", [True, False])
async def test_one_that_stood_still_acts_no_more(
    made: Callable[..., WatchLock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """The control has no fence: there both act."""
    first, second = made("a:1"), made("b:2")
    await first.hold()
    aged(tmp_path / "watch", 29)
    assert await second.hold() is None
    aged(tmp_path / "watch", 2)
    assert await second.hold() is not None
    if not fenced:
        monkeypatch.setattr(first, "read", lambda: Supervisor(term=1, holder="a:1"))
    acted = []
    for each in (first, second):
        with contextlib.suppress(Superseded):
            async with each.acting():
                acted.append(each)
    assert acted == ([second] if fenced else [first, second])


@pytest.mark.parametrize(("state", "over"), [("RUNNING", False), ("COMPLETED", True), ("TIMEOUT", True)])
async def test_a_holder_whose_job_has_ended_is_not_waited_for(
    made: Callable[..., WatchLock], fake: Fake, state: str, over: bool
) -> None:
    fake.answers("squeue", f"{state}\n")
    await made("a:1", "7").hold()
    assert (await made("b:2", "8").hold() is not None) is over
    again = made("c:3", "8" if over else "7")
    assert await again.hold() is not None, "the same job, which runs again"


async def test_of_two_runs_of_one_job_the_older_one_takes_nothing_back(
    made: Callable[..., WatchLock], fake: Fake
) -> None:
    """As after a node that was cut off and whose job Slurm runs elsewhere."""
    fake.answers("squeue", "RUNNING\n")
    old, new = made("old:1", "7"), made("new:2", "7")
    assert await old.hold() is not None
    assert await new.hold() is not None
    assert [await each.hold() is not None for each in (old, new, old, new)] == [False, True, False, True]


@pytest.mark.parametrize("compared", [True, False])
async def test_where_terms_begin_again_one_alone_acts(
    made: Callable[..., WatchLock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    """The file was lost, and the second one has the term that the first one had. The control compares terms alone."""
    first, second = made("a:1"), made("b:2")
    await first.hold()
    (tmp_path / "watch" / "supervisor.json").unlink()
    await second.hold()
    if not compared:
        monkeypatch.setattr(first, "_ours", lambda found: found.term == 1)
    acted = []
    for each in (first, second):
        with contextlib.suppress(Superseded):
            async with each.acting():
                acted.append(each)
    assert acted == ([second] if compared else [first, second])


async def test_a_process_of_this_host_that_has_ended_is_not_waited_for(
    made: Callable[..., WatchLock], tmp_path: Path
) -> None:
    """As one by hand that was killed. One of another host may live."""
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    here = place_of(ended.pid)
    state = tmp_path / "watch" / "supervisor.json"
    for process, over in ((place_of(os.getpid()), False), (f"other{here}", False), ("", False), (here, True)):
        state.write_bytes(msgspec.json.encode(Supervisor(term=4, holder="a:1", process=process)))
        assert (await made("b:2").hold() is not None) is over
    assert made("c:3").read().process == place_of(os.getpid())


def test_the_guard_does_not_lie_where_people_empty(found: Deployment) -> None:
    """Removed while it is held, it would keep nobody out; and `cancel` found no chain without it."""
    places.keep(found)
    assert places.submitted(found)
    assert not places.guard(found).is_relative_to(logs(found))


async def test_while_one_acts_nobody_takes_its_place(
    made: Callable[..., WatchLock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stand still in the middle of a command of Slurm."""
    monkeypatch.setattr(lock_module, "BUSY_S", 0.1)
    first, second = made("a:1"), made("b:2")
    await first.hold()
    aged(tmp_path / "watch", 100)
    async with first.acting():
        with pytest.raises(Busy, match="another process has held"):
            await second.hold()
    assert await second.hold() is not None


async def test_jobs_of_an_ended_chain_take_it_no_more(made: Callable[..., WatchLock]) -> None:
    job, by_hand = made("a:1", "7"), made("b:2")
    await job.hold()
    async with made("c:3").taken():
        pass
    with pytest.raises(Superseded):
        async with job.acting():
            pass
    assert await job.hold() is None
    by_hand.reopen(chain=False)
    assert await job.hold() is None
    by_hand.reopen(chain=True)
    assert await job.hold() is not None


@pytest.mark.parametrize("command", ["drain", "cancel"])
async def test_a_supervisor_by_hand_asks_for_nothing_after_a_drain_until_something_is_submitted(
    tmp_path: Path, fake: Fake, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """It was forgotten on a login node, and another stood by. The control is one that begins afterwards."""
    spec = tmp_path / "d.toml"
    spec.write_text(f'name = "d"\nshared = "{tmp_path / "shared"}"\n[redis]\n')

    async def run(command: str) -> None:
        assert await cli.COMMANDS[command](spec_file.read(spec), cli.parse([command, "--spec", str(spec)])) == 0

    await run("submit")
    first, second, later = (Watch(lambda: spec_file.read(spec)) for _ in range(3))
    await first.look()
    await second.look()
    assert len(asked(fake)) == 2, "of the submission, and of the first look"
    await run(command)
    assert "asks for nothing until the next `submit`" in capsys.readouterr().err
    await first.look()
    await second.look()
    assert len(asked(fake)) == 2
    assert capsys.readouterr().err.count("somebody has ended it by `drain` or `cancel`") == 2
    await later.look()
    assert len(asked(fake)) == 3
    await later._leave()
    await run("submit")
    await first.look()
    assert len(asked(fake)) == 5


async def test_a_supervisor_sees_to_it_that_another_follows(found: Deployment, fake: Fake) -> None:
    """Before its limit, or at its end, whatever ends it. Redis is asked for though it does not answer."""
    fake.answers("squeue", OWN)
    watch = Watch(lambda: found, job="7")
    await watch.look()
    sent = [call["stdin"] for call in fake.calls if call["argv"][0] == "sbatch"]
    assert [text.splitlines()[1].split(".")[1] for text in sent] == ["watch", "redis"]
    assert "#SBATCH --dependency='after:7+50?afterany:7'" in sent[0]
    redis = "18|d.redis|RUNNING|n1|9|59:00|None\n"
    fake.answers("squeue", OWN + BEHIND.splitlines(keepends=True)[0] + redis)
    await watch.look()
    [*_, last] = [call["stdin"] for call in fake.calls if call["argv"][0] == "sbatch"]
    assert "#SBATCH --dependency='after:17+50?afterany:17'" in last, "and one behind that one"
    fake.answers("squeue", OWN + BEHIND + redis)
    await watch.look()
    assert len(fake.argvs("sbatch")) == 3


@pytest.mark.parametrize("behind", [2, pytest.param(1, id="control")])
async def test_one_that_ends_in_its_first_look_does_not_end_the_chain(
    found: Deployment, fake: Fake, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """All that it would have submitted is missing. The control has none behind it."""
    monkeypatch.setattr("slurm.supervisor.watch.BEHIND", behind)
    watch, waiting = Watch(lambda: replace(found, redis=None), job="7"), list[str]()
    for _ in range(4):
        rows = (f"{job}|d.watch|PENDING||0:00|1:00:00|Dependency\n" for job in waiting)
        fake.answers("squeue", OWN + "".join(rows))
        await watch.look()
        waiting = [str(17 + place) for place in range(len(fake.argvs("sbatch")))]
    ended, *left = waiting
    assert bool(left) is (behind == 2), ended


async def test_a_supervisor_that_stood_still_in_its_look_submits_nothing(
    found: Deployment, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another takes the lock after it has looked at Slurm's tasks."""
    fake.answers("squeue", OWN)
    watch = Watch(lambda: found, job="7")

    async def slow(*names: object) -> list[object]:
        monkeypatch.undo()
        os.environ["FAKE_SLURM"], os.environ["PATH"] = str(fake.place), path
        aged(places.directory(found.shared), 100)
        assert await places.lock(found).hold() is not None
        return []

    path = os.environ["PATH"]
    monkeypatch.setattr("slurm.supervisor.watch.tasks", slow)
    try:
        assert await watch.look() == {}
    finally:
        os.environ.pop("FAKE_SLURM")
    assert fake.argvs("sbatch") == []
    assert "has taken over (term 2): standing by" in capsys.readouterr().err


async def test_jobs_of_the_chain_that_fail_at_once_are_followed_by_none(
    found: Deployment, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until one has acted for a while: then they were killed."""
    fake.answers("squeue", OWN + "".join(f"{job}|d.watch|FAILED|n1|0:01|59:00|None\n" for job in (4, 5, 6)))
    watch = Watch(lambda: replace(found, redis=None), job="7")
    await watch.look()
    assert fake.argvs("sbatch") == []
    monkeypatch.setattr("slurm.supervisor.watch.PROVEN_S", 0.0)
    await watch.look()
    assert asked(fake) == ["watch"]


HELD = [
    "JobHeldUser", "JobHeldAdmin", "launch failed requeued held", "launch_failed_requeued_held", "JobHoldMaxRequeue",
    "job requeued in held state", "DependencyNeverSatisfied", "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit",
]  # fmt: skip


def test_the_reasons_of_slurm_are_told_apart() -> None:
    def held(reason: str) -> bool:
        [task] = read_tasks(f"17|d.watch|PENDING||0:00|1:00:00|{reason}\n")
        return task.held

    assert all(held(reason) for reason in HELD)
    waits = (
        "None",
        "Dependency",
        "Priority",
        "Resources",
        "BeginTime",
        "QOSMaxCpuPerUserLimit",
        "ReqNodeNotAvail, UnavailableNodes:threshold1",
    )
    assert not any(held(reason) for reason in waits)


@pytest.mark.parametrize("reason", HELD[2:3])
async def test_a_job_that_slurm_holds_back_is_not_on_its_way(
    found: Deployment, fake: Fake, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chain would end without a word. Three are enough: no more are asked for."""
    held = [f"{job}|d.watch|PENDING||0:00|1:00:00|{reason}\n" for job in (17, 18, 19)]
    there = "9|d.redis|RUNNING|n1|1:00|59:00|None\n"
    fake.answers("squeue", OWN + there + held[0])
    watch = Watch(lambda: found, job="7")
    await watch.look()
    assert asked(fake) == ["watch"]
    fake.answers("squeue", OWN + there + "".join(held))
    await watch.look()
    assert asked(fake) == ["watch"]
    assert "held back: see `status`; no successor is submitted" in capsys.readouterr().err
    tasks = read_tasks(held[0])
    assert notes(found, tasks, {}, None) == [
        f"17 (watch) will not start by itself ({reason}): `scontrol release 17` once its cause has gone, or `cancel 17`"
    ]


@pytest.mark.parametrize("ended", [True, False])
def test_a_look_by_hand_brings_no_ended_chain_back(tmp_path: Path, fake: Fake, ended: bool) -> None:
    """The control has a chain that was lost. `submit watch` alone begins another one."""
    spec = tmp_path / "d.toml"
    spec.write_text(f'name = "d"\nshared = "{tmp_path / "shared"}"\n[watch]\n')

    def run(*words: str) -> None:
        assert cli.main([words[0], "--spec", str(spec), *words[1:]]) == 0

    run("submit")
    if ended:
        run("cancel", "watch")
    run("scale")
    run("scale")
    assert asked(fake)[1:] == ([] if ended else ["watch", "watch"])
    run("submit", "watch")
    run("scale")
    assert asked(fake)[-2:] == ["watch", "watch"]


async def test_a_refusal_stops_none_of_the_commands_after_it_and_is_told_once(
    found: Deployment, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a limit of jobs, the chain's successor is refused; Redis is asked for all the same."""
    fake.answers("squeue", OWN)
    fake.answers("sbatch-refuses-watch", "sbatch: error: AssocMaxSubmitJobLimit", 1)
    watch = Watch(lambda: found, job="7")
    for _ in range(2):
        await watch.look()
    assert asked(fake) == ["watch", "redis", "watch", "redis"]
    assert capsys.readouterr().err.count("AssocMaxSubmitJobLimit") == 1
    fake.answers("sbatch-refuses-watch", "21\n")
    await watch.look()
    assert "scale watch: a successor is 21" in capsys.readouterr().err


def test_one_look_by_hand_that_slurm_refused_something_ends_with_1(tmp_path: Path, fake: Fake) -> None:
    spec = tmp_path / "d.toml"
    spec.write_text(f'name = "d"\nshared = "{tmp_path / "shared"}"\n[redis]\n')
    fake.answers("sbatch", "sbatch: error: AssocMaxSubmitJobLimit", 1)
    assert cli.main(["scale", "--spec", str(spec)]) == 1
    fake.answers("sbatch", "17\n")
    assert cli.main(["scale", "--spec", str(spec)]) == 0


@pytest.mark.parametrize(
    ("time", "said"),
    [("01:00:00", "after:7+50?afterany:7"), ("1", "after:7+1?afterany:7"), ("UNLIMITED", "afterany:7"),
     ("2-0", "after:7+2592?afterany:7")],
)  # fmt: skip
def test_the_successor_begins_before_the_limit(found: Deployment, time: str, said: str) -> None:
    assert found.watch is not None
    text = watch_script(replace(found, watch=replace(found.watch, time=time)), after="7").text
    assert f"--dependency={said}" in text.replace("'", "")


async def test_those_who_submit_take_turns(tmp_path: Path) -> None:
    order = []

    async def one(name: str) -> None:
        async with exclusive(tmp_path / "guard"):
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(name)

    await asyncio.gather(*(one(name) for name in "abc"))
    assert order[::2] == order[1::2]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Fills the disk below a directory: nothing is written to a file there, times of files are."""

    def fill(directory: Path) -> None:
        real_open, real_os_open = Path.open, os.open

        def refuse(path: object, writes: bool) -> None:
            if writes and Path(str(path)).is_relative_to(directory):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        def opened(self: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
            refuse(self, "w" in mode)  # one that appends without writing is opened
            return real_open(self, mode, *args, **named)

        def os_opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
            refuse(path, bool(flags & os.O_CREAT) and "fake" not in str(path))
            return real_os_open(path, flags, *args, **named)

        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(os, "open", os_opened)

    return fill


async def test_a_full_disk_stops_no_supervisor(
    found: Deployment, fake: Fake, full: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It renews its lock by its time alone, and does without a history."""
    fake.answers("squeue", OWN + BEHIND + "9|d.redis|RUNNING|n1|1:00|59:00|None\n")
    watch = Watch(lambda: found, job="7")
    await watch.look()
    aged(places.directory(found.shared), 50)
    state = places.directory(found.shared) / "supervisor.json"
    before = state.stat().st_mtime
    full(Path(found.shared))
    fake.answers("squeue", OWN)
    for _ in range(2):
        await watch.look()
    assert state.stat().st_mtime > before + 40
    assert asked(fake)[:2] == ["watch", "redis"]
    assert "scale history: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cancel", "drain"])
def test_a_full_disk_keeps_nobody_from_ending_it(
    tmp_path: Path, fake: Fake, full: Callable[[Path], None], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    spec = tmp_path / "d.toml"
    spec.write_text(f'name = "d"\nshared = "{tmp_path / "shared"}"\n[redis]\n[watch]\n')
    assert cli.main(["submit", "--spec", str(spec)]) == 0
    fake.answers("squeue", OWN + "9|d.redis|RUNNING|n1|1:00|59:00|None\n")
    full(tmp_path / "shared")
    assert cli.main([command, "--spec", str(spec)]) == 0
    assert fake.argvs("scancel")[0] == ["7"]
    assert "the lock of the supervisor cannot be written: [Errno 28]" in capsys.readouterr().err
    assert cli.main(["submit", "--spec", str(spec)]) == 2
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RedisError("NOPERM User prorl-ingress has no permissions"), ValueError("a defect")])
async def test_no_error_ends_a_supervisor(
    found: Deployment, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """A user of Redis without rights, as with an old redis.conf; or what nobody has thought of."""
    fake.answers("squeue", OWN)
    stopping = Stopping()

    async def read(_: object) -> None:
        stopping.asked.set()
        raise error

    @contextlib.asynccontextmanager
    async def store(*_: object, **__: object) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr("slurm.supervisor.watch.store_of", store)
    monkeypatch.setattr("slurm.demand.read", read)
    await Watch(lambda: found, job="7").run(stopping, once=False)
    assert str(error) in capsys.readouterr().err


async def test_a_lock_that_cannot_be_read_is_begun_again(
    made: Callable[..., WatchLock], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a file server that fell over may leave it."""
    await made("a:1").hold()
    (tmp_path / "watch" / "supervisor.json").write_bytes(b"")
    again = made("b:2")
    assert await again.hold() is not None
    assert "supervisor.json cannot be read" in capsys.readouterr().err
    async with again.acting():
        pass
