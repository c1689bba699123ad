"""What vLLM says of a trajectory's tokens is what a Transformers forward pass says of the whole of it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, check
from tests.vllm.scoring import TOLERANCE, Scorer
from workers.agent.hermes import Message
from workers.agent.loading import load_renderer
from workers.agent.renderer import Renderer
from workers.agent.tokens import TokenRecord
from workers.inference.assignment import Endpoint, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed

pytestmark = pytest.mark.anyio
SAMPLING = Sampling(temperature=1.2, max_tokens_per_turn=40)
TURNS = 4


async def rolled_out(clients: InferenceClients, backend: Endpoint, renderer: Renderer, number: int) -> Trajectory:
    """A conversation by ids: each prompt is the one before, what was sampled, and the next question."""
    policy = StickyPolicy(
        job_id=f"score-{backend.protocol.value}-{number}", token="1", assigner=FixedAssigner(backend), clients=clients
    )
    asked = [Message(role="user", content=f"Tell part {turn} of story {number}.") for turn in range(TURNS)]
    record = TokenRecord(renderer.prompt([Message(role="system", content="You tell stories."), asked[0]]))
    tail: Sequence[int] = ()
    for turn in range(TURNS):
        if turn:
            record.insert(renderer.after(tail, [asked[turn]]))
        answer = await policy.generate(
            record.context, max_tokens=SAMPLING.max_tokens_per_turn, temperature=SAMPLING.temperature,
            seed=100 * number + turn, stop_token_ids=renderer.stop_ids,
        )  # fmt: skip
        record.sample(answer)
        tail = answer.ids
    return record.trajectory(stop_reason="max_turns", truncated_by="turns", sampling=SAMPLING)


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_trajectories_of_several_turns_score_as_they_were_sampled(
    clients: InferenceClients, vllm: Probed, scorer: Scorer, model: Path, protocol: WireProtocol
) -> None:
    """Each in one forward pass: were one id of one turn not what the backend had, all that follow would differ."""
    backend = Endpoint(address=vllm.info.address, protocol=protocol, model=vllm.info.model)
    renderer = await load_renderer(model)
    trajectories = await asyncio.gather(*(rolled_out(clients, backend, renderer, number) for number in range(6)))
    for trajectory in trajectories:
        check(trajectory)
        [segment] = trajectory.segments
        assert len(segment.spans) == TURNS
        assert scorer.error(trajectory, model) < TOLERANCE


async def test_the_scores_tell_other_weights_apart(
    clients: InferenceClients, vllm: Probed, scorer: Scorer, model: Path, other_weights: Path
) -> None:
    trajectory = await rolled_out(clients, vllm.info, await load_renderer(model), 99)
    assert scorer.error(trajectory, other_weights) > 1


async def test_prompts_that_do_not_fit_into_one_step_together_are_sampled_with_seeds(
    clients: InferenceClients, vllm: Probed, scorer: Scorer, model: Path
) -> None:
    """vLLM on a CPU dies of a seeded prompt that it takes in parts; ops/vllm-serve.sh keeps it from doing that."""
    prompts = [[(number * 7919 + place * 31) % 1000 + 20 for place in range(1500)] for number in range(8)]
    policies = [
        StickyPolicy(
            job_id=f"long-{number}", token="1", assigner=FixedAssigner(vllm.info), clients=clients, max_tries=1
        )
        for number in range(8)
    ]
    answers = await asyncio.gather(
        *(
            policy.generate(prompt, max_tokens=4, temperature=1.0, seed=number)
            for number, (policy, prompt) in enumerate(zip(policies, prompts, strict=True))
        )
    )
    ids = [*prompts[0], *answers[0].ids]
    scored = scorer.score(ids, len(prompts[0]), [(len(ids), model)], 1.0)
    assert scored == pytest.approx(list(answers[0].logprobs), abs=TOLERANCE)
