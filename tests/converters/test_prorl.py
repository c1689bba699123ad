"""ProRL's messages, put end to end, are the context that the model saw."""

import pytest

from prorl_mq.converters.prorl import messages
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.trajectory import Segment, Trajectory
from tests.converters.made import ALL, compacted, with_tools


@pytest.mark.parametrize("case", ALL)
def test_the_contract_of_the_first_release_holds(case: str) -> None:
    trajectory = ALL[case]().trajectory
    for number, segment in enumerate(trajectory.segments):
        if not segment.spans:
            continue
        made = messages(trajectory, segment=number)
        last = made[-1]
        assert [token for message in made for token in message["token_ids"]] == last["input_ids"] + last["token_ids"]
        assert made[0]["role"] != "assistant"
        assert last["role"] == "assistant"
        for message in made:
            if message["role"] == "assistant":
                assert len(message["logprobs"]) == len(message["token_ids"]) > 0
            else:
                assert (message["logprobs"], message["input_ids"]) == (None, None)


def test_tools_and_their_calls_are_told() -> None:
    made = messages(with_tools().trajectory, input_ids=False)
    assert [(message["role"], message["content"]) for message in made] == [
        ("user", "2 ids"),
        ("assistant", "turn 1"),
        ("tool", "one"),
        ("assistant", "turn 2"),
        ("tool", "two"),
        ("assistant", "turn 3"),
    ]
    assert made[1]["tool_calls"] == [{"name": "think", "arguments": '{"thought": "x"}'}]
    assert made[4]["token_ids"] == [99, 5, 6]  # with the end that the cut turn did not get to
    assert all("input_ids" not in message for message in made if message["role"] == "assistant")


def test_a_client_that_knows_no_segments_gets_the_last_that_sampled() -> None:
    assert messages(compacted().trajectory)[0]["token_ids"] == [1, 2, 3]


def test_a_trajectory_without_a_sampled_token_has_no_messages() -> None:
    empty = Segment(prompt_ids=[1], response_ids=[], loss_mask=[], logprobs=[])
    with pytest.raises(NotTrainable, match="no token was sampled"):
        messages(Trajectory(segments=[empty], turns=[], stop_reason="context"))
