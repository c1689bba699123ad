"""CPUs of sandboxes where no control group shares CPU time out."""

import os
from pathlib import Path

import pytest

from sandbox.isolators.cpus import cpus_of, on_cpus
from sandbox.lifetime import cgroup
from sandbox.protocol import SandboxProvider, SandboxSpec
from tests.sandbox.conftest import ISOLATED, WITHOUT_PYTHON, Create

RUN, EVAL = SandboxSpec(owner="run"), SandboxSpec(owner="eval", evaluates=True)
WITH_CPU = cgroup.ControlGroups(version=2, directories=dict.fromkeys(cgroup.WANTED, Path("/g")))
WITHOUT_CPU = cgroup.ControlGroups(version=2, directories=dict.fromkeys(cgroup.NEEDED, Path("/g")))


@pytest.mark.parametrize("groups", [None, WITHOUT_CPU])
@pytest.mark.parametrize(("count", "kept", "got"), [(2, 1, 1), (4, 1, 1), (16, 2, 3), (64, 8, 14)])
def test_a_sandbox_of_run_gets_a_part_of_what_is_not_kept_for_eval(
    groups: cgroup.ControlGroups | None, count: int, kept: int, got: int
) -> None:
    drawn = [cpus_of(RUN, groups, range(count)) for _ in range(500)]
    assert {len(each) for each in drawn} == {got}
    assert set().union(*drawn) == set(range(kept, count))


def test_a_sandbox_may_use_all_of_them_where_it_cannot_harm() -> None:
    every = set(range(8))
    assert cpus_of(EVAL, None, every) == cpus_of(RUN, WITH_CPU, every) == every
    assert cpus_of(RUN, None, {5}) == {5}


def test_this_thread_has_its_own_cpus_back() -> None:
    own = os.sched_getaffinity(0)
    with on_cpus(RUN, None):
        assert os.sched_getaffinity(0) == own - {min(own)} or len(own) > 2
    assert os.sched_getaffinity(0) == own


@pytest.mark.anyio
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU, which all share")
@pytest.mark.parametrize("kind", [*ISOLATED, WITHOUT_PYTHON[1]], indirect=True)
async def test_what_runs_inside_has_them(
    create: Create, provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc says. The control is a sandbox of EVAL."""
    monkeypatch.setattr(provider, "_groups", None)
    own = os.sched_getaffinity(0)
    found = []
    for evaluates in (False, True):
        box = await create(evaluates=evaluates)
        listed = await box.run(["grep", "Cpus_allowed_list", "/proc/self/status"])
        found.append(listed.stdout.split()[1].decode())
    assert found[0] != found[1]
    assert found[1] == _listed(own)


def _listed(cpus: set[int]) -> str:
    """Of neighbours, as test machines have them."""
    return f"{min(cpus)}-{max(cpus)}"
