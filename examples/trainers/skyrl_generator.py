"""SkyRL: a generator whose rollouts the service makes.

Give the trainer `ProrlGenerator(url)` where it builds its generator. `env_classes` are data sources, `env_extras` the
payloads. A history that was compacted makes the output step-wise (`generator.step_wise_trajectories`).
"""

import asyncio
from typing import Any

from prorl_mq.client import AsyncClient
from prorl_mq.client.rollouts import Rollouts, sampling_of
from prorl_mq.converters import skyrl
from prorl_mq.converters.rollout import Rollout
from prorl_mq.schema.messages import Purpose, Task

try:
    from skyrl.train.generators.base import GeneratorInterface, TrajectoryID
except ImportError:  # the interface is one method
    GeneratorInterface, TrajectoryID = object, None


class ProrlGenerator(GeneratorInterface):  # type: ignore[misc]
    """`generate` gives one output for each prompt, in their order."""

    def __init__(self, url: str, *, run_id: str = "skyrl", token: str | None = None) -> None:
        self._url, self._run_id, self._token = url, run_id, token

    async def generate(self, input_batch: Any, *_: Any, **__: Any) -> Any:
        """Raises `NotTrainable` for a prompt that the service has no sample of, refills included."""
        async with AsyncClient(self._url, token=self._token) as client, Rollouts(client, self._run_id) as rollouts:
            found = await asyncio.gather(
                *(self._one(rollouts, input_batch, at) for at in range(len(input_batch["prompts"])))
            )
        made: Any = skyrl.output(found)
        asked = input_batch.get("trajectory_ids")
        if asked is not None:
            rows = [place for place, each in enumerate(found) for _ in each.segments]
            made["trajectory_ids"] = [asked[place] for place in rows]
        elif TrajectoryID is not None:
            made["trajectory_ids"] = [TrajectoryID(**each) for each in made["trajectory_ids"]]
        return made

    async def _one(self, rollouts: Rollouts, batch: Any, place: int) -> Rollout:
        extras = (batch.get("env_extras") or [{}] * len(batch["prompts"]))[place]
        asked = (batch.get("trajectory_ids") or [None] * len(batch["prompts"]))[place]
        name = asked.instance_id if asked is not None else f"prompt-{place}"
        task = Task(task_id=str(name), data_source=batch["env_classes"][place], payload=dict(extras))
        about = batch.get("batch_metadata")
        purpose = Purpose(about.training_phase) if about is not None else Purpose.TRAIN
        [found] = await rollouts.of(task, sampling=sampling_of(batch.get("sampling_params") or {}), purpose=purpose)
        return found
