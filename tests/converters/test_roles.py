"""Exported messages have their roles, and nothing of the chat template's text."""

from typing import Any

import msgspec
import pytest

from prorl_mq.converters import agent_lightning, nemo_gym, rllm
from prorl_mq.converters.rollout import rollout
from prorl_mq.converters.table import Sample, rows
from prorl_mq.schema.messages import Outcome, SampleRecord, Sampling
from prorl_mq.schema.trajectory import Trajectory
from tests.agent.chat import call
from tests.formats.models import MODELS, Known, renderer
from workers.agent.hermes import Message
from workers.agent.loop import run_agent
from workers.agent.result import LoopEnd
from workers.agent.tools import TOOLS
from workers.external.history import Said
from workers.external.recording import Recording
from workers.inference.run_clock import RunClock
from workers.rehearsal.policy import ScriptedPolicy

pytestmark = pytest.mark.anyio
CALLED = '[{"name":"think","arguments":"{\\"thought\\": \\"x\\"}"}]'
TOOL_LIST = [TOOLS["think"], TOOLS["finish"]]
ASKED = [Message(role="system", content="You help."), Message(role="user", content="How many?")]
WRITTEN = {  # a thought and a call, as a model of each format writes them
    "chatml": "<think>\nhm\n</think>\n\n" + call("think", '{"thought": "x"}'),
    "qwen_xml": "hm\n</think>\n\n<tool_call>\n<function=think>\n<parameter=thought>\nx\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm45": "\n<think>hm</think>\n<tool_call>think\n<arg_key>thought</arg_key>\n<arg_value>x</arg_value>\n"
    "</tool_call>",
    "gemma4": '<|channel>thought\nhm\n<channel|><|tool_call>call:think{thought:<|"|>x<|"|>}<tool_call|>',
    "gpt_oss": '<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.think<|channel|>commentary json'
    '<|message|>{"thought": "x"}',
}  # fmt: skip


def exported(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The messages of the only segment."""
    sample = Sample(
        run_id="r", batch_id="b", group_id="g", job_id="r:g:0", index=0, task_id="t", data_source="d",
        verdict="complete", outcome=Outcome.COMPLETED, reward=1.0, trajectory=trajectory,
    )  # fmt: skip
    [row] = rows(sample)
    return [
        {name: value for name, value in msgspec.to_builtins(each).items() if value not in ("", "[]")}
        for each in row.messages
    ]


def model(name: str) -> Known:
    return next(known for known in MODELS if known.format == name and known.thinking not in {"–", "off"})


@pytest.mark.parametrize("name", WRITTEN)
async def test_a_rollout_with_tools_has_the_roles_of_its_messages(name: str) -> None:
    made = renderer(model(name).name)
    opened = "hm</think>\n\n" if name == "qwen_xml" else ""
    answer = "<|channel|>final<|message|>It is 42." if name == "gpt_oss" else f"{opened}It is 42."
    result = await run_agent(
        policy=ScriptedPolicy(made, [WRITTEN[name], answer]), renderer=made, messages=ASKED, tools=TOOL_LIST,
        sandbox=None, sampling=Sampling(max_context_tokens=1 << 15), sample="s", deadline=RunClock(60),
    )  # fmt: skip
    assert exported(result.trajectory) == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "How many?"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": '[{"name":"think","arguments":"{\\"thought\\": \\"x\\"}"}]',
        },
        {"role": "tool", "content": "Your thought has been noted."},
        {"role": "assistant", "content": "It is 42.", **({"reasoning": "hm"} if opened else {})},
    ]
    sample = SampleRecord(job_id="r:g:0", index=0, outcome=Outcome.COMPLETED, reward=1.0)
    whole = rollout("t", sample, result.trajectory)
    texts = [
        [output["content"] for output in rllm.model_outputs(whole)],
        [each["data"]["response"]["choices"][0]["message"]["content"] for each in agent_lightning.events(whole)[:-1]],
        [item["content"][0]["text"] for item in nemo_gym.items(whole)[0] if item["type"] == "message"],
    ]
    assert texts == [["", "It is 42."]] * 3


async def test_a_conversation_that_a_harness_leads_has_its_roles() -> None:
    made = renderer(model("chatml").name)
    policy = ScriptedPolicy(made, [WRITTEN["chatml"], "It is 42."])
    recording = Recording(policy, made, Sampling(max_context_tokens=1 << 15), "s")
    history = [Said(role=each.role, text=each.content) for each in ASKED]
    reply = await recording.ask(history, TOOL_LIST)
    history += [reply.said, Said(role="tool", text="noted")]
    await recording.ask(history, TOOL_LIST)
    trajectory = await recording.trajectory(LoopEnd(reason="answer"))
    assert trajectory is not None
    assert [(each["role"], each.get("content", "")) for each in exported(trajectory)] == [
        ("system", "You help."), ("user", "How many?"), ("assistant", ""), ("tool", "noted"),
        ("assistant", "It is 42."),
    ]  # fmt: skip
    assert '"name":"think"' in exported(trajectory)[2]["tool_calls"]
