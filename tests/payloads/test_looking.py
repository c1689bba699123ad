"""What fsck, doctor and status say of payloads, and where their directory is."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from prorl_mq.cli import doctor
from prorl_mq.schema.messages import Stage
from prorl_mq.service import payload_files
from prorl_mq.service.fsck.look import look
from prorl_mq.service.fsck.payloads import LEFT_S
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.store import Store
from slurm.deployed import prepare
from slurm.spec import Deployment, RedisJob
from tests.payloads.conftest import TENANT, age, under
from tests.payloads.test_collect import collected, commit, finish, put
from tests.support.queue import RUN, Queue

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        (RedisSettings(url="unix:///srv/state/redis/redis.sock"), "/srv/state/redis/payloads"),
        (RedisSettings(rendezvous=Path("/shared/demo/rendezvous/eval.json")), "/shared/demo/rendezvous/payloads"),
        (RedisSettings(url="redis://h:1", rendezvous=Path("/shared/eval.json")), None),  # the address wins
        (RedisSettings(url="redis://h:1/0"), None),
        (RedisSettings(url="rediss://h:1/0"), None),
    ],
)
async def test_the_directory_is_beside_what_says_where_redis_is(settings: RedisSettings, directory: str | None) -> None:
    found = payloads_of(settings)
    assert (found and str(found.directory)) == directory


async def test_roles_of_one_deployment_have_one_directory(tmp_path: Path) -> None:
    roles = [payloads_of(RedisSettings(rendezvous=tmp_path / f"{role}.json")) for role in ("worker", "eval", "ingress")]
    assert {each.directory for each in roles if each} == {tmp_path / "payloads"}


async def test_a_new_deployment_on_slurm_has_a_directory_and_an_old_one_gets_none(tmp_path: Path) -> None:
    """Workers of the release before may still run there: they know no payloads in files."""
    for name, old in (("new", False), ("old", True)):
        shared = tmp_path / name
        if old:
            (shared / "rendezvous").mkdir(parents=True)
        deployment = Deployment(name=name, shared=str(shared), redis=RedisJob())
        prepare(deployment)
        prepare(deployment)
        files = payloads_of(RedisSettings(rendezvous=shared / "rendezvous" / "worker.json"))
        assert files is not None
        assert files.there != old


async def found(queue: Queue, files: PayloadFiles | None) -> set[tuple[int, str]]:
    return {(each.number, each.key) for each in (await look(queue.store, still=True, files=files)).violations}


@pytest.mark.parametrize("where", ["job", "export", "record"])
@pytest.mark.parametrize("fault", ["missing", "short"])
async def test_fsck_names_a_file_that_is_missing_or_short(
    queue: Queue, files: PayloadFiles, where: str, fault: str
) -> None:
    held = await queue.hold(Stage.RUN)
    file = await put(queue, held)
    held = await commit(queue, held, file)
    key = queue.keys.job(held.ref)
    if where == "export":
        await queue.command("HSET", key, "exported", str(file), "trajectory", "")
    if where == "record":
        await finish(queue, held, file)
        await queue.settle()
        key = queue.keys.results(RUN)
    before = await found(queue, files)
    path = files.path(TENANT, file)
    if fault == "missing":
        path.unlink()
    else:
        os.truncate(path, 5)
    assert await found(queue, files) - before == {(55, key)}
    [what] = [each.what for each in (await look(queue.store, still=True, files=files)).violations if each.number == 55]
    assert f"{path}: {'No such file' if fault == 'missing' else 'has 5 of its 100000 bytes'}" in what


async def test_fsck_names_a_file_that_should_have_been_collected_and_touches_nothing(
    queue: Queue, files: PayloadFiles
) -> None:
    name = files.write(TENANT, b"x" * 100)
    age(files, name, seconds=LEFT_S - 60)
    assert await found(queue, files) == set()
    age(files, name, seconds=LEFT_S + 60)
    before = files.directory.stat()
    assert await found(queue, files) == {(55, str(files.path(TENANT, name)))}
    assert len(under(files.directory)) == 1
    after = files.directory.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns), "nothing was made there"
    await collected(queue, files)
    assert await found(queue, files) == set()


async def test_fsck_names_a_directory_that_it_cannot_look_through(queue: Queue, files: PayloadFiles) -> None:
    """The rest of the look has nothing to do with it."""
    (files.directory / "t").symlink_to("t")
    assert await found(queue, files) == {(55, str(files.directory / "t"))}


async def test_fsck_without_the_directory_says_what_it_could_not_judge(queue: Queue, files: PayloadFiles) -> None:
    held = await queue.hold(Stage.RUN)
    await commit(queue, held, await put(queue, held))
    for place in (None, PayloadFiles(files.directory / "nowhere", "t")):
        report = await look(queue.store, still=True, files=place)
        assert report.not_judged == ["1 payloads in files: this process sees no directory of them"]


async def test_doctor_and_status_say_where_payloads_are_and_how_many(files: PayloadFiles) -> None:
    files.write(TENANT, b"x" * (3 << 20))
    told = re.escape(f"above 64 KiB in {files.directory}: 1 files, 3.0 MiB; ")
    assert re.fullmatch(told + r"[\d.]+ of [\d.]+ GiB are free", await payload_files.told(files))
    assert "that address names no directory" in await payload_files.told(None)
    nowhere = PayloadFiles(files.directory / "nowhere", "t")
    assert await payload_files.told(nowhere) == f"in Redis, 16 MiB each at most: there is no {nowhere.directory}"
    assert [await payload_files.fault(each) for each in (files, nowhere, None)] == ["", "", ""]


async def test_doctor_fails_where_no_file_can_be_written(files: PayloadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only() -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files, "probe", read_only)
    finding = await doctor._payloads(cast("Store", SimpleNamespace(payloads=files)))
    assert finding.said == f"{files.directory}: Read-only file system"
    assert finding.fix
