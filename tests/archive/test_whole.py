"""A group comes back from a file as it went in, also where completions of it are not trained."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from prorl_mq.archive import table
from prorl_mq.archive.table import ArchiveDamaged, WholeGroup
from prorl_mq.converters.table import Row, Sample, rows
from prorl_mq.schema.codec import decode_trajectory, encode_trajectory
from prorl_mq.schema.trajectory import ExpertRoutes, RoutedExperts, Segment, Trajectory
from tests.archive.groups import trajectory
from tests.archive.test_once import NOW_MS, whole


def side_first(*, alone: bool) -> Trajectory:
    """A side completion in a segment of its own, and behind it, or not, what is trained."""
    made = trajectory()
    side = Segment(prompt_ids=[41, 42], response_ids=[43], loss_mask=[0], logprobs=[None], prompt_text="Name it.")
    ask = replace(made.turns[0], prompt_tokens=2, completion_tokens=1, left_out="side", tool_calls=())
    turns = [] if alone else [replace(turn, segment=turn.segment + 1) for turn in made.turns]
    told = replace(made, segments=[side, *([] if alone else made.segments)], turns=[ask, *turns])
    return decode_trajectory(encode_trajectory(told))


def back(tmp_path: Path, told: Trajectory) -> WholeGroup:
    """What a file gives back of a group of one sample."""
    path = tmp_path / "00000001.parquet"
    with path.open("xb") as file:
        table.write(file, [given(told)], archived_ms=NOW_MS, data="mark")
    [place] = table.footer(path).groups
    return table.read(path, place)


def given(told: Trajectory) -> WholeGroup:
    return whole("g")._replace(trajectories={"r:g:0": told})


def exported(told: Trajectory) -> Sequence[Row]:
    group = given(told).record
    return list(rows(table.sample_of(group, group.samples[0], told)))


@pytest.mark.parametrize("alone", [False, True])
def test_a_sample_with_completions_that_are_left_out_comes_back_bit_for_bit(tmp_path: Path, alone: bool) -> None:
    told = side_first(alone=alone)
    kept = back(tmp_path, told)
    assert kept.trajectories == {"r:g:0": told}
    assert kept.record.samples == given(told).record.samples


def test_an_export_has_no_row_of_what_is_left_out() -> None:
    assert [row.segment for row in exported(side_first(alone=False))] == [1, 2]
    assert exported(side_first(alone=True)) == []


@pytest.mark.parametrize("alone", [False, True])
def test_with_the_rows_of_an_export_the_group_would_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """The control."""

    def as_exported(sample: Sample, *, left_out: bool) -> Sequence[Row]:
        assert left_out
        return list(rows(sample))

    monkeypatch.setattr(table, "rows", as_exported)
    with pytest.raises((ArchiveDamaged, ValueError)):
        back(tmp_path, side_first(alone=alone))


def test_routed_experts_come_back_with_the_segment_whose_tokens_they_are_of(tmp_path: Path) -> None:
    made, of = trajectory(), RoutedExperts(layers=3, top_k=2, experts=8)
    first, second = made.segments
    routes = ExpertRoutes(of=of, start=0, data=bytes(1 + each % 7 for each in range(4 * of.bytes_a_token)))
    told = replace(made, segments=[replace(first, routes=routes), second])
    kept = back(tmp_path, decode_trajectory(encode_trajectory(told))).trajectories["r:g:0"]
    assert [segment.routes for segment in kept.segments] == [routes, None]
