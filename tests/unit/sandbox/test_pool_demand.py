"""How many warm sandboxes are wanted follows from what was asked for, and when."""

from pathlib import Path

import pytest

from sandbox.keeper import memory
from sandbox.keeper.pool_demand import WINDOW_S, WarmDemand
from sandbox.keeper.pool_shape import Shape, shape_in, shape_of
from sandbox.lifetime.owner import Owner, OwnerKind, parse
from sandbox.protocol import Mount, SandboxLimits, SandboxSpec

PLAIN, OTHER = Shape(), Shape(image="/images/other")


def test_the_busiest_second_counts() -> None:
    demand = WarmDemand()
    for now_s in (5.0, 5.8, 5.9, 6.1, 7.5):
        demand.asked(PLAIN, now_s)
    assert demand.targets(8.0, room=10) == {PLAIN: 3}


def test_a_shape_that_nobody_asks_for_is_forgotten_after_the_window() -> None:
    demand = WarmDemand()
    demand.asked(PLAIN, 5.0)
    assert demand.targets(5.0 + WINDOW_S - 1, room=10) == {PLAIN: 1}
    assert demand.targets(7.0 + WINDOW_S, room=10) == {}


def test_the_busiest_shape_gets_its_room_first() -> None:
    demand = WarmDemand()
    for shape, number in ((OTHER, 2), (PLAIN, 5)):
        for _ in range(number):
            demand.asked(shape, 1.0)
    assert demand.targets(1.0, room=6) == {PLAIN: 5, OTHER: 1}
    assert demand.targets(1.0, room=0) == {PLAIN: 0, OTHER: 0}


def test_only_what_a_warm_sandbox_can_be_is_a_shape() -> None:
    limits = SandboxLimits(processes=9)
    assert shape_of(SandboxSpec(owner="a", image="i", network=True, limits=limits)) == Shape(
        image="i", network=True, limits=limits
    )
    assert shape_of(SandboxSpec(owner="a", environment={"X": "1"})) is None
    assert shape_of(SandboxSpec(owner="a", mounts=(Mount(source="/a", target="/b"),))) is None


@pytest.mark.parametrize("shape", [PLAIN, Shape(image="/a b", network=True, limits=SandboxLimits(cpu_s=1))])
def test_a_shape_survives_in_a_label(shape: Shape) -> None:
    owner = parse(shape.spec("a service/1").owner)
    assert owner is not None
    assert (owner.kind, owner.service, shape_in(owner)) == (OwnerKind.POOL, "a service/1", shape)


def test_labels_that_no_service_wrote_have_no_owner() -> None:
    for text in ("", "selfcheck", "jobs prorl x", "test 1"):
        assert parse(text) is None
    assert shape_in(Owner(OwnerKind.POOL, "s", "{")) is None


def test_free_memory_is_the_groups_where_that_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control groups of both versions; the limit of any group above counts."""
    whole = memory.free_share()
    assert 0 < whole <= 1
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 50\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_groups", lambda: [tmp_path / "none", tmp_path])
    assert memory.free_share() == pytest.approx(min(whole, 0.15))
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_share() == pytest.approx(whole, abs=0.1)
