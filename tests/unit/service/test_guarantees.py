"""What status and doctor say of guarantees, made of facts alone."""

from pathlib import Path
from typing import Any

import pytest

from prorl_mq.process.mounts import file_system
from prorl_mq.schema.messages import Stage
from prorl_mq.service.guarantees import lines
from prorl_mq.store.audit.guarantees import Facts, ServerFacts

GIB = 1 << 30
SERVER = ServerFacts(
    appendonly=True, appendfsync="always", syncs_in_rewrites=True, late_fsyncs=0, memory_bytes=GIB,
    memory_limit_bytes=8 * GIB, policy="noeviction", master="", replicas=0, replicas_needed=0, acks=0, waitaof=True,
    directory="/data", process=1,
)  # fmt: skip
FACTS = Facts(
    server=SERVER, unacked_bytes=4 * GIB, epoch=2, opened_ms=0, now_ms=5_400_000, offset_ms=0,
    workers=dict.fromkeys(Stage, 1), limits={"n0": "hard"}, families=("math",),
)  # fmt: skip


def said(subject: str, facts: Facts = FACTS, *, mounted: str = "ext4", **server: Any) -> str:
    found = lines(facts._replace(server=facts.server._replace(**server)), file_system=mounted)
    assert len(found) == 7
    [line] = [line for line in found if line.startswith(f"{subject} ")]
    return line.removeprefix(subject).strip()


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, "fsync always: a crash of any process or of the host loses nothing that was accepted"),
        ({"appendfsync": "everysec"}, "fsync everysec: a crash of the host can lose the last second or two"),
        ({"appendfsync": "everysec", "late_fsyncs": 3}, "3 fsyncs were late"),
        ({"appendfsync": "no"}, "about 30 s"),
        ({"appendfsync": ""}, "this user may not read appendfsync"),
        ({"appendonly": False}, "a restart of Redis loses what was accepted since its last snapshot"),
    ],
)
def test_durability_follows_how_redis_writes_its_file(server: dict[str, Any], expected: str) -> None:
    assert expected in said("durability", **server)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, "1024 MiB of 8192 MiB, above 70% new work is refused; a run holds 4096 MiB of results at most"),
        ({"memory_limit_bytes": 2 * GIB}, "4096 MiB of results at most (more than there is)"),
        ({"memory_limit_bytes": 0}, "no maxmemory: the kernel may kill Redis"),
        ({"policy": "allkeys-lru"}, "Redis may evict accepted work"),
    ],
)
def test_memory_says_what_happens_when_it_is_full(server: dict[str, Any], expected: str) -> None:
    assert expected in said("memory", **server)


def test_replicas_say_whether_there_is_another_copy() -> None:
    assert said("replicas") == "none: work waits while Redis is down, and its disk is the only copy (WAITAOF is there)"
    both = said("replicas", replicas=2, replicas_needed=1, waitaof=False)
    assert both == "2, 1 needed for a write; they follow behind: a failover can lose the last writes (no WAITAOF)"


def test_storage_says_whether_another_host_can_take_over() -> None:
    assert said("storage") == "data in /data (ext4, of this host): it comes back with this host alone"
    assert "shared): another host can take over" in said("storage", mounted="nfs4")
    assert said("storage", mounted="") == "data in /data, not seen from this machine"


def test_sandboxes_say_on_which_nodes_limits_are_soft() -> None:
    both = FACTS._replace(limits={"n0": "hard", "n1": "watchdog", "n2": "none"})
    assert said("sandboxes", both).startswith("hard limits on n0 (control groups); soft limits on n1 (no control")
    assert said("sandboxes", FACTS._replace(limits={"n2": "none"})) == "no living worker has any"


def test_the_clock_says_what_it_is_corrected_by() -> None:
    assert said("clock") == "epoch 2, open for 1.5 h; no jump of Redis's clock is being corrected"
    young = said("clock", FACTS._replace(opened_ms=FACTS.now_ms - 360_000))
    assert young.startswith("epoch 2, open for 6 min;")
    assert said("clock", FACTS._replace(offset_ms=-3_600_000)).endswith("is corrected by -3600.0 s")


def test_workers_say_what_waits_and_which_families_there_are() -> None:
    assert said("workers") == "1 init, 1 run, 1 eval; families announced: math"
    lacking = FACTS._replace(workers={**FACTS.workers, Stage.EVAL: 0}, families=tuple("abcdef"))
    assert said("workers", lacking) == (
        "1 init, 1 run, 0 eval (work waits: no eval); families announced: a, b, c, d and 2 more"
    )


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = "1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /proc rw - proc proc rw\n3 1 0:3 / /proc/self rw - odd odd rw"
    assert file_system(Path("/proc/self"), mounts) == "odd"
    assert file_system(Path("/proc/sys"), mounts) == "proc"
    assert file_system(Path("/usr"), mounts) == "ext4"
    assert file_system(Path("/no/such/place"), mounts) == ""
