"""`prorl-mq demo`: from tasks to trajectories, with a real model, on this machine.

It succeeds only if an agent's tool call ran, an agent earned a reward, and every trajectory holds what the backend
sent: all that it answered was kept on the way, by a proxy before it.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import msgspec

from prorl_mq.cli.demo.conversation import Conversation
from prorl_mq.cli.demo.families import EXAMPLES, Offer, offered
from prorl_mq.cli.demo.proof import Answers, Proof, kept_in, prove
from prorl_mq.cli.installing.command import offer_to_install
from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.local.service import LocalService
from prorl_mq.cli.local.settings import POOL, ServiceSettings
from prorl_mq.cli.out_file import OutFile
from prorl_mq.cli.progress import Progress
from prorl_mq.cli.submit import batches, group_names, submit_and_collect
from prorl_mq.cli.tasks_file import read
from prorl_mq.cli.up import addresses, say
from prorl_mq.client import AsyncClient
from prorl_mq.clock import monotonic
from prorl_mq.dashboard.settings import installed
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.screen.tables import table
from prorl_mq.process.screen.terminal import attended
from prorl_mq.schema.messages import BatchRequest, Limits, Sampling, Stage
from prorl_mq.schema.trajectory import Trajectory

FAULTS = (ConfigurationError,)
MODEL: Final = Path("models") / "smollm2-135m-instruct"
SAMPLED_TOKENS: Final = 6000  # of the whole demo at most
TOKENS_A_SAMPLE: Final = 112
TALK: Final = ("think", "finish")  # tools that run nothing
SECONDS: Final = 1000
TOOLS: Final = ("sandbox-python", "apptainer", "images")  # of `prorl-mq install-tools`


class DemoLine(msgspec.Struct, frozen=True):
    """The part of a line that the table shows."""

    job_id: str
    task_id: str
    index: int
    outcome: str
    reward: float | None
    turns: int
    tool_calls: int
    seconds: dict[str, float]
    trajectory: Trajectory | None
    replaced: bool = False

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.completion_tokens for turn in self.trajectory.turns) if self.trajectory else 0

    @property
    def tools_run(self) -> int:
        turns = self.trajectory.turns if self.trajectory else ()
        return sum(call.ok and call.name not in TALK for turn in turns for call in turn.tool_calls)


async def run(given: argparse.Namespace) -> int:
    await offer_to_install(needed(given), given.state_dir.absolute())
    async with offered(given.family, given.state_dir.absolute()) as offer:
        return await show(given, offer)


def needed(given: argparse.Namespace) -> list[str]:
    """The parts of `install-tools` that the demo would use."""
    parts = ["sandbox"] if given.sandbox in {"auto", "apptainer", "bubblewrap"} else []
    return parts if given.backend else [*parts, "demo"]


async def show(given: argparse.Namespace, offer: Offer) -> int:
    """Starts the service, rolls the tasks out and says what came of it."""
    settings = msgspec.structs.replace(settings_of(given), environment=offer.environment)
    [batch] = batch_of(given, given.tasks) if given.tasks else batch_of(given, offer.tasks, most=offer.most)
    began = monotonic()
    service = LocalService(settings, say)
    conversation = Conversation(f"{batch.run_id}:{group_names(batch)[0]}:0", settings.tokenizer or Path())
    code: int | None = None
    with OutFile(given.out, fresh=True) as out, interruptible(service.kill):
        say(f"starting Redis, the API, three workers{'' if settings.backends else ' and vLLM'}")
        try:
            await service.start()
            say(f"ready after {monotonic() - began:.1f} s; {len(batch.groups)} groups of {given.n} samples submitted")
            for what, where in addresses(service).items():
                say(f"  {what:<9} {where}")
            await roll_out(service, batch, out, conversation)
            code = told(given, answers_in(settings.state_dir), await pool_text(service))
            print(f"{monotonic() - began:.1f} s in total", flush=True)
            if stays(given):
                print(next_steps(service, given), flush=True)
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            say("stopping what was started" if code is not None else "interrupted; stopping what was started")
            if code is None:
                raise
        finally:
            await service.aclose()
    return code


def told(given: argparse.Namespace, answers: Path, pool: str) -> int:
    """Prints what came of the samples, and proves it; the exit code."""
    samples = samples_of(given.out)
    proofs = proofs_of(samples, answers)
    print(samples_table(samples, proofs), f"the pool {POOL!r} afterwards:\n{pool}", sep="\n\n", end="\n\n")
    return max(proven(proofs, answers), verdict(samples, given.out, solved=given.family is None))


def stays(given: argparse.Namespace) -> bool:
    """True for a person at a terminal, who has a Ctrl-C."""
    return not given.once and attended(sys.stdin, sys.stdout)


def next_steps(service: LocalService, given: argparse.Namespace) -> str:
    """Suggestions for a new user, as lines to paste into another terminal."""
    state, tasks = (shlex.quote(str(each)) for each in (service.settings.state_dir, EXAMPLES / "demo_tasks.jsonl"))
    steps = {
        addresses(service)["web page"]: "in a browser: every run down to its tokens",
        f"PRORL_STATE={state} prorl-mq submit {tasks} --url {service.url} --run mine --n 2":
            "a run of your own",
        f"prorl-mq status --state-dir {state}": "what waits, and why",
        f"prorl-mq view {shlex.quote(str(given.out))}": "these rollouts in a browser, without a service",
    }  # fmt: skip
    lines = [f"  {step}\n      {what}" for step, what in steps.items()]
    return "\n".join(["", "the service stays up until Ctrl-C. Try next:", *lines])


def settings_of(given: argparse.Namespace, name: str = "demo") -> ServiceSettings:
    """Raises `ConfigurationError` if the model is not there."""
    state = given.state_dir.absolute()
    model = state / MODEL
    tokenizer = given.tokenizer.absolute() if given.tokenizer else model
    if not tokenizer.is_dir():
        fix = f"run `prorl-mq install-tools demo --state-dir {state}`, or give --backend and --tokenizer"
        raise ConfigurationError(f"{tokenizer} is missing: {fix}")
    offer_tools(state, name)
    return ServiceSettings(
        state_dir=state / name,
        sandbox=given.sandbox,
        processes={Stage.INIT: 1, Stage.RUN: 1, Stage.EVAL: 1},
        slots=16,
        port=0,
        tokenizer=tokenizer,
        backends=(given.backend,) if given.backend else (),
        local_backend=None if given.backend else model,
        answers=answers_in(state / name),
        dashboard=installed(),
        fresh=True,
        grace_s=5.0,
    )


def offer_tools(state: Path, name: str) -> None:
    """The demo's sandboxes use what was installed for all."""
    for tool in TOOLS:
        link = state / name / tool
        if (state / tool).is_dir() and not (link.is_symlink() or link.exists()):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path("..") / tool)


def batch_of(given: argparse.Namespace, tasks: Path, *, most: int | None = None) -> list[BatchRequest]:
    """The tasks, with limits that keep a slow machine's time short."""
    lines = read(tasks, n=given.n)[:most]
    samples = sum(line.group.n for line in lines)
    tokens = max(16, min(TOKENS_A_SAMPLE, SAMPLED_TOKENS // samples))
    sampling = Sampling(temperature=0.6, seed=1, max_turns=4, max_tokens_per_turn=min(64, tokens), max_tokens=tokens)
    limits = Limits(init_ms=120 * SECONDS, run_ms=120 * SECONDS, eval_ms=120 * SECONDS, total_ms=360 * SECONDS)
    return batches("demo", None, lines, sampling, limits)


async def roll_out(service: LocalService, batch: BatchRequest, out: OutFile, conversation: Conversation) -> None:
    """Writes every group's samples as it closes; meanwhile one conversation is told."""
    progress = Progress(len(batch.groups), sum(group.n for group in batch.groups))
    async with AsyncClient(service.url, token=service.token) as client:
        following = asyncio.create_task(conversation.follow(client), name="conversation")
        try:
            async with progress.shown():
                await submit_and_collect(client, [batch], out, lambda closed: progress.add(closed.record))
        finally:
            following.cancel()
            await asyncio.wait({following})
    one = next((one for one in samples_of(out.path) if one.job_id == conversation.job), None)
    if one is not None:
        conversation.finish(one.trajectory, one.reward)


def samples_of(path: Path) -> list[DemoLine]:
    lines = path.read_bytes().splitlines()
    return sorted(
        (msgspec.json.decode(line, type=DemoLine) for line in lines), key=lambda one: (one.task_id, one.index)
    )


async def pool_text(service: LocalService) -> str:
    """The backends of the pool, as the API tells of them."""
    headers = {"Authorization": f"Bearer {service.token}"}
    async with httpx.AsyncClient(timeout=30, trust_env=False, headers=headers) as http:
        rows = (await http.get(f"{service.url}/v1/pools/{POOL}/backends")).raise_for_status().json()["backends"]
    told = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return table(told, [[row[name] for name in told] for row in rows])


def answers_in(state_dir: Path) -> Path:
    return state_dir / "answers"


def proofs_of(samples: Sequence[DemoLine], kept: Path) -> list[Proof | None]:
    """Of each sample that has a trajectory."""
    answers = Answers(kept_in(kept))
    return [prove(one.trajectory, answers) if one.trajectory else None for one in samples]


def samples_table(samples: Sequence[DemoLine], proofs: Sequence[Proof | None]) -> str:
    head = ("task", "sample", "outcome", "reward", "turns", "as sent", "tools", "tokens", "init s", "run s", "eval s")
    rows = [
        (
            one.task_id, one.index, one.outcome, "-" if one.reward is None else f"{one.reward:.2f}", one.turns,
            "-" if proof is None else proof.turns, one.tools_run, one.sampled_tokens,
            *(round(one.seconds.get(stage.value, 0.0), 2) for stage in Stage),
        )
        for one, proof in zip(samples, proofs, strict=True)
    ]  # fmt: skip
    return table(head, rows)


def proven(proofs: Sequence[Proof | None], kept: Path) -> int:
    """Says whether ids and log-probabilities are those that were sent; 1 if any is not, or nothing was sent."""
    known = [proof for proof in proofs if proof is not None]
    there = [proof for proof in known if proof.turns or proof.faults]
    turns, tokens = sum(proof.turns for proof in there), sum(proof.tokens for proof in there)
    equal = sum(proof.holds for proof in there)
    print(
        f"ids and log-probabilities of {equal} of {len(there)} trajectories ({turns} turns, {tokens} tokens) equal, "
        f"byte for byte, what the backend sent; see {kept}"
    )
    if others := len(known) - len(there):
        print(f"{others} others ended before the backend had answered once")
    for place, proof in enumerate(proofs):
        for fault in proof.faults if proof else ():
            print(f"line {place + 1} of the table, {fault}", file=sys.stderr)
    return 0 if equal == len(there) and (there or not known) else 1


def verdict(samples: Sequence[DemoLine], path: Path, *, solved: bool = True) -> int:
    """Says what the samples come to; 1 unless all were scored and, if any must be `solved`, a tool ran and earned."""
    tools = sum(one.tools_run for one in samples)
    rewarded = sum((one.reward or 0) > 0 for one in samples)
    tokens = sum(one.sampled_tokens for one in samples)
    print(f"{len(samples)} samples, {tools} tool calls, {rewarded} with reward > 0, {tokens} sampled tokens: {path}")
    unscored = sum(one.reward is None and not one.replaced for one in samples)
    if unscored and not solved:
        print(f"the demo failed: {unscored} samples have no reward", file=sys.stderr)
        return 1
    if not solved or (tools and rewarded):
        return 0
    print("the demo failed: it needs a tool call that ran and a reward above 0", file=sys.stderr)
    return 1
