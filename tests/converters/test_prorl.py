"""ProRL's messages, put end to end, are the context that the model saw."""

import msgspec
import pytest

from prorl_mq.converters.prorl import messages
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.trajectory import PromptMessage, Segment, Trajectory
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


def told(*prompt: tuple[str, str], **turn: object) -> Trajectory:
    """The trajectory with the messages of its prompt, and its first turn with what was parsed of it."""
    made = with_tools().trajectory
    messages = [PromptMessage(role=role, content=content) for role, content in prompt]
    segment = msgspec.structs.replace(made.segments[0], messages=messages, prompt_text="<|im_start|>system ...")
    first = msgspec.structs.replace(made.turns[0], text="<think>why</think>Hm.<tool_call>...", **turn)
    return msgspec.structs.replace(made, segments=[segment], turns=[first, *made.turns[1:]])


def test_content_is_what_was_said_without_the_templates_text() -> None:
    made = messages(told(("system", "Be careful."), ("user", "How?"), content="Hm.", reasoning="why"))
    assert [(each["role"], each["content"], each["token_ids"]) for each in made[:2]] == [
        ("system", "Be careful.", []),
        ("user", "How?", [1, 2]),
    ]
    assert made[2]["content"] == "<think>\nwhy\n</think>\n\nHm."
    assert messages(told(("user", "How?"), content="Hm."))[1]["content"] == "Hm."


def test_a_prompt_with_worked_answers_stays_one_message() -> None:
    """A client takes the first message of an assistant for the first that was sampled."""
    worked = (("user", "1 + 1?"), ("assistant", "2"), ("user", "How?"))
    made = messages(told(*worked, content="Hm."))
    assert [(each["role"], each["content"]) for each in made[:1]] == [("user", "<|im_start|>system ...")]
    assert made[1]["role"] == "assistant"


def test_calls_that_nobody_runs_are_told_unless_they_cannot_be_read() -> None:
    made = messages(told(("user", "How?"), content="", tool_calls=[], client_calls=[("book", "{}"), ("", "{book}")]))
    assert made[1]["tool_calls"] == [{"name": "book", "arguments": "{}"}]
