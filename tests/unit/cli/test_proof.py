"""Trajectories are compared with the bytes that a backend sent, on their way through a recorder."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from prorl_mq.cli.demo.command import proven
from prorl_mq.cli.demo.proof import Answers, Proof, kept_in, prove
from prorl_mq.process.recorder import Recorder
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, Turn
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import scripted
from prorl_mq.testing.wire import FakeFault
from workers.agent.tokens import TokenRecord
from workers.inference.assignment import Endpoint, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy

pytestmark = pytest.mark.anyio
PROMPT = [11, 12, 13]
SCRIPT = [[21, 22, 2], [23, 24, 25, 2]]


async def rolled_out(address: str, protocol: WireProtocol = WireProtocol.VLLM_GENERATE) -> Trajectory:
    """Two turns."""
    record = TokenRecord(PROMPT)
    backend = Endpoint(address=address, protocol=protocol, model="policy")
    async with InferenceClients() as clients:
        policy = StickyPolicy(job_id="job", token="1", assigner=FixedAssigner(backend), clients=clients)
        for _ in range(2):
            sent = len(record.context)
            answer = await policy.generate(record.context, max_tokens=8, temperature=1.0, stop_token_ids=[2])
            record.sample(answer)
            record.end_turn(
                Turn(
                    segment=0, prompt_tokens=sent, completion_tokens=len(answer.ids), cached_tokens=0,
                    finish_reason=answer.finish_reason, llm_seconds=0.0, text="",
                )
            )  # fmt: skip
            record.insert([30])
    return record.trajectory(stop_reason="answer", truncated_by=None, sampling=Sampling())


@pytest.mark.parametrize("protocol", list(WireProtocol))
async def test_a_trajectory_equals_what_was_sent(tmp_path: Path, protocol: WireProtocol) -> None:
    async with FakeBackend(reply=scripted(SCRIPT)) as backend, Recorder(backend.address, tmp_path) as recorder:
        trajectory = await rolled_out(recorder.address, protocol)
    proof = prove(trajectory, Answers(kept_in(tmp_path)))
    assert (proof.holds, proof.turns, proof.tokens, proof.faults) == (True, 2, 7, [])


async def test_one_bit_of_a_log_probability_or_one_id_is_noticed(tmp_path: Path) -> None:
    async with FakeBackend(reply=scripted(SCRIPT)) as backend, Recorder(backend.address, tmp_path) as recorder:
        trajectory = await rolled_out(recorder.address)
    [segment] = trajectory.segments
    assert segment.logprobs[1] is not None
    logprobs = [*segment.logprobs[:1], segment.logprobs[1] * (1 + 2**-52), *segment.logprobs[2:]]
    assert logprobs != segment.logprobs
    ids = [*segment.response_ids[:5], 99, *segment.response_ids[6:]]
    for changed, turn in (({"logprobs": logprobs}, 0), ({"response_ids": ids}, 1)):
        forged = msgspec.structs.replace(trajectory, segments=[msgspec.structs.replace(segment, **changed)])
        proof = prove(forged, Answers(kept_in(tmp_path)))
        assert not proof.holds
        assert [fault.partition(":")[0] for fault in proof.faults] == [f"turn {turn}"]


async def test_an_answer_serves_for_one_trajectory_only(tmp_path: Path) -> None:
    async with FakeBackend(reply=scripted(SCRIPT)) as backend, Recorder(backend.address, tmp_path) as recorder:
        trajectory = await rolled_out(recorder.address)
    answers = Answers(kept_in(tmp_path))
    assert [prove(trajectory, answers).holds, prove(trajectory, answers).holds] == [True, False]


async def test_a_turn_that_was_aborted_is_put_together_from_its_answers(tmp_path: Path) -> None:
    async with FakeBackend(token_ms=200) as backend, Recorder(backend.address, tmp_path) as recorder:
        task = asyncio.create_task(rolled_out(recorder.address))
        await backend.wait_running(1)
        backend.token_ms = 0
        backend.abort_all(0.5)
        trajectory = await task
    proof = prove(trajectory, Answers(kept_in(tmp_path)))
    assert len(list(kept_in(tmp_path))) == 3
    assert (proof.holds, proof.turns) == (True, 2)


async def test_a_recorder_passes_faults_on_and_takes_a_request_away_with_its_client(tmp_path: Path) -> None:
    async with FakeBackend() as backend, Recorder(backend.address, tmp_path) as recorder:
        backend.fail_next(FakeFault.BUSY)
        assert (await rolled_out(recorder.address)).turns
        assert "failed" in backend.states()
        backend.fault = FakeFault.HANG
        task = asyncio.create_task(rolled_out(recorder.address))
        await backend.wait_running(1)
        task.cancel()
        await backend.wait_running(0)
    assert len(list(kept_in(tmp_path))) == 2, "only what was answered is kept"


def test_what_ended_before_its_first_answer_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    """On a slow machine rollouts run out of time, and the demo failed. The control: faults, and nothing but such."""
    right, empty, wrong = Proof(turns=2, tokens=7), Proof(), Proof(faults=["turn 0: not sent"])
    assert proven([right, empty, None], Path("answers")) == 0
    said = capsys.readouterr().out
    assert "1 of 1 trajectories (2 turns, 7 tokens)" in said
    assert "1 others ended before" in said
    assert [proven(each, Path("answers")) for each in ([right, wrong], [empty])] == [1, 1]
