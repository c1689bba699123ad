"""verl and SkyRL get the routed experts of each row as they take them, by their own published checks."""

import typing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from pyarrow import parquet

from prorl_mq.cli.export import WRITERS
from prorl_mq.converters import experts, skyrl, verl
from prorl_mq.converters.rollout import Rollout
from prorl_mq.converters.table import Sample, rows
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.trajectory import ExpertRoutes, RoutedExperts
from prorl_mq.testing.experts import FakeExperts
from tests.converters.made import ALL, compacted, with_tools
from tests.converters.test_skyrl import accepted

FEW = RoutedExperts(layers=3, top_k=2, experts=8)
MANY = RoutedExperts(layers=2, top_k=3, experts=300)


def routed(made: Rollout, of: RoutedExperts) -> Rollout:
    """The rollout as it would be with routes."""
    segments = []
    for segment in made.trajectory.segments:
        told = FakeExperts(of=of).numbers([*segment.prompt_ids, *segment.response_ids])
        data = b"".join(each.to_bytes(of.bytes_an_id, "little") for each in told)
        segments.append(msgspec.structs.replace(segment, routes=ExpertRoutes(of=of, start=0, data=data)))
    return msgspec.structs.replace(made, trajectory=msgspec.structs.replace(made.trajectory, segments=segments))


def expected(ids: list[int], of: RoutedExperts) -> typing.Any:
    return np.array(FakeExperts(of=of).numbers(ids)).reshape(-1, of.layers, of.top_k)


@pytest.mark.parametrize("of", [FEW, MANY])
def test_verl_gets_a_row_for_each_token_but_the_last(of: RoutedExperts) -> None:
    for make in ALL.values():
        made = make()
        for output in verl.outputs(routed(made, of)):
            found = output["routed_experts"]
            ids = [*output["prompt_ids"], *output["response_ids"]]
            assert found.shape == (len(ids) - 1, of.layers, of.top_k)
            assert found.dtype == ("uint8" if of is FEW else "int16")
            assert (found == expected(ids, of)).all()
        assert all("routed_experts" not in output for output in verl.outputs(made))


def test_a_row_that_is_cut_has_no_more_rows_than_tokens() -> None:
    [output] = verl.outputs(routed(with_tools(), FEW), prompt_length=1, response_length=7)
    ids = [*output["prompt_ids"], *output["response_ids"]]
    whole = [*with_tools().trajectory.segments[0].prompt_ids, *with_tools().trajectory.segments[0].response_ids]
    assert whole[: len(ids)] == ids
    assert output["routed_experts"].shape[0] == len(ids)
    assert (output["routed_experts"] == expected(whole, FEW)[: len(ids)]).all()


@pytest.mark.parametrize("of", [FEW, MANY])
def test_skyrl_gets_an_array_a_row_and_a_lost_one_has_some_that_replay(of: RoutedExperts) -> None:
    made = skyrl.output([routed(with_tools(), of), routed(compacted(), of), None])
    accepted(made, 3, step_wise=True)
    arrays = made["rollout_expert_indices"]
    assert arrays is not None
    for prompt, response, found in zip(made["prompt_token_ids"], made["response_ids"], arrays, strict=True):
        assert 1 <= found.shape[0] <= len(prompt) + len(response)
        assert found.shape[1:] == (of.layers, of.top_k)
    assert (arrays[0] == expected([*made["prompt_token_ids"][0], *made["response_ids"][0]], of)).all()
    assert arrays[-1].tolist() == [[list(range(of.top_k))] * of.layers]


def test_a_batch_of_which_one_has_none_has_none() -> None:
    """SkyRL takes routes of each row, or of none."""
    assert skyrl.output([routed(with_tools(), FEW), with_tools()])["rollout_expert_indices"] is None
    assert skyrl.output([with_tools()])["rollout_expert_indices"] is None
    assert experts.array(experts.placeholder(MANY)).shape == (1, 2, 3)


@pytest.mark.parametrize("of", [FEW, MANY])
def test_a_table_has_them_as_bytes_with_their_shape(of: RoutedExperts, tmp_path: Path) -> None:
    made = routed(with_tools(), of).trajectory
    sample = Sample(
        run_id="r", batch_id="b", group_id="g", job_id="j", index=0, task_id="t", data_source="d", verdict="kept",
        outcome=Outcome.COMPLETED, trajectory=made,
    )  # fmt: skip
    out = tmp_path / "rows.parquet"
    WRITERS["parquet"](out, rows(sample))
    [row] = parquet.read_table(out).to_pylist()
    *shape, size = row["experts_shape"]
    found = np.frombuffer(row["routed_experts"], "<u1" if size == 1 else "<i2").reshape(shape)
    assert (found == expected([*row["prompt_ids"], *row["response_ids"]], of)[: shape[0]]).all()
    assert shape[0] == len(row["prompt_ids"]) + len(row["response_ids"]) - 1
    assert [row.experts_shape for row in rows(replace(sample, trajectory=with_tools().trajectory))] == [None]
