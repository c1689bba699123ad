"""Episodes of hostile acts: an agent in a sandbox of the keeper's, through INIT, RUN and EVAL of two families.

Two invariants. No act of the agent yields null: RUN ends with a result or in doubt (`SandboxLost`, which is undecided
once and the agent's the second time), and EVAL with a reward, which is 0. No act of the infrastructure yields a reward
that the work did not earn: a right solution earns 1 or nothing is said about it, whatever dies meanwhile.
"""

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prorl_mq.schema.trajectory import Trajectory
from sandbox.errors import SandboxError
from sandbox.isolators.kinds import make_provider
from sandbox.keeper.client import KeptProvider
from sandbox.keeper.server import Keeper
from sandbox.protocol import Sandbox, SandboxHandle, SandboxProvider, SandboxSpec
from tests.hostile import acts, solutions
from workers.handler import Handler, Init, NodeCrowded, Prepared, Ran, Run, SandboxLost
from workers.handlers.code.family import Code
from workers.handlers.human_eval import HumanEval
from workers.rehearsal.stages import Rehearsal, task_of

ACTS = 48  # of an episode, in turns of eight
A_TURN = 8
TOOL_MS = 600
NODE = "hostile"
OUR_SERVER_FAILED = re.compile(r"the server of sandbox \S+ failed|gave an answer that is none")
ALLOWED_OF_NODES = (SandboxError, OSError, NodeCrowded)  # how a stage may end once the infrastructure has acted


class Violation(NamedTuple):
    """A broken invariant, with the seed of the episode that broke it."""

    seed: int
    what: str


class Found(msgspec.Struct):
    """The count of an episode or of many."""

    acts: Counter[str] = msgspec.field(default_factory=Counter)
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    doubts: Counter[str] = msgspec.field(default_factory=Counter)  # by the act that was under way
    violations: list[Violation] = []

    def add(self, other: "Found") -> None:
        self.acts += other.acts
        self.ends += other.ends
        self.doubts += other.doubts
        self.violations = [*self.violations, *other.violations]


class Brisk:
    """A family whose agent's tools have less time."""

    def __init__(self, family: Handler) -> None:
        self._family = family
        self.data_sources, self.schema, self.needs_sandbox = family.data_sources, family.schema, family.needs_sandbox
        self.eval = family.eval

    async def init(self, context: Init) -> Prepared:
        return await self._family.init(context)

    async def run(self, context: Run) -> Ran:
        sampling = msgspec.structs.replace(context.job.sampling, tool_timeout_ms=TOOL_MS)
        context.job = msgspec.structs.replace(context.job, sampling=sampling)  # type: ignore[misc]  # a rehearsal's
        return await self._family.run(context)


class Watched:
    """A provider that remembers which sandboxes it gave."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self.kind, self.node = provider.kind, provider.node
        self.attach, self.destroy, self.aclose = provider.attach, provider.destroy, provider.aclose
        self.given: list[SandboxHandle] = []

    async def create(self, spec: SandboxSpec) -> Sandbox:
        made = await self._provider.create(spec)
        self.given.append(made.handle)
        return made


FAMILIES: Mapping[str, Handler] = {"human_eval": Brisk(HumanEval()), "code": Brisk(Code())}


@contextlib.asynccontextmanager
async def kept(
    kind: str, state_dir: Path, tools_dir: Path, *, warm: int, lives_s: float = 3600.0
) -> AsyncIterator[KeptProvider]:
    """The provider of a worker, beside a node's keeper with warm sandboxes; after `lives_s` there is another keeper."""
    keepers, own = [make_provider(kind, node=NODE, state_dir=state_dir, tools_dir=tools_dir) for _ in range(2)]
    try:
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(_keep(keepers, state_dir, warm, lives_s))
            yield KeptProvider(own, state_dir, "hostile")
            keeping.cancel()
    finally:
        await keepers.aclose()
        await own.aclose()


async def _keep(provider: SandboxProvider, state_dir: Path, warm: int, lives_s: float) -> None:
    while True:
        keeper = Keeper(provider, state_dir, "hostile")
        keeper.pool.make_room(warm)
        async with keeper.listening():
            await asyncio.sleep(lives_s)


async def episode(seed: int, provider: SandboxProvider, model: Path, *, count: int = ACTS) -> Found:
    """One agent that is hostile, or one time in eight an honest one on a node that fails."""
    chance = random.Random(seed)
    watched = Watched(provider)
    rehearsal = Rehearsal(watched, model)
    if chance.random() < 0.125:
        return await _failing_node(seed, chance, watched, rehearsal)
    return await _hostile_agent(seed, chance, rehearsal, count)


async def _hostile_agent(seed: int, chance: random.Random, rehearsal: Rehearsal, count: int) -> Found:
    found = Found()
    name = chance.choice(tuple(FAMILIES))
    family, made = FAMILIES[name], [acts.act(chance) for _ in range(count)]
    task = task_of(family, solutions.row_of(name))
    turns = ["\n".join(map(acts.call_text, made[first : first + A_TURN])) for first in range(0, count, A_TURN)]
    last = solutions.solution(chance) if name == "human_eval" else solutions.program(chance)
    block = f"```python\n{last.encode('utf-8', 'replace').decode()}\n```"
    [how] = chance.choices(("block", "file", "words"), (6, 3, 1))
    handed_in = {"block": block, "file": "It is in the file."}.get(how) or solutions.last_words(chance)
    try:
        ran = await rehearsal.run(family, task, [*turns, handed_in])
    except SandboxLost as lost:
        return _in_doubt(seed, found, made, lost)
    except Exception as error:
        found.violations = [Violation(seed, f"RUN raised {type(error).__name__}: {error}"[:500])]
        return found
    _count(found, made, ran.trajectory)
    found.ends[ran.trajectory.stop_reason if ran.trajectory else "no trajectory"] += 1
    await _scored(seed, rehearsal, family, task, ran, found)
    return found


def _in_doubt(seed: int, found: Found, made: list[acts.Act], lost: SandboxLost) -> Found:
    """A server that is gone leaves no other answer; one that lives and fails over what it reads is our mistake."""
    done = _count(found, made, lost.trajectory)
    said = f"{made[min(done, len(made) - 1)].about!r}: {_plain(lost)}"
    found.doubts[said] += 1
    found.ends["in doubt"] += 1
    if OUR_SERVER_FAILED.search(str(lost)):
        found.violations = [Violation(seed, f"our server failed over {said}")]
    return found


def _plain(error: Exception) -> str:
    """Without what differs from one sandbox to another."""
    return re.sub(r"sandbox \S+ on \S+|[0-9]+", "_", str(error))[:160]


def _count(found: Found, made: list[acts.Act], trajectory: Trajectory | None) -> int:
    """How many of the acts were run to their end."""
    done = sum(len(turn.tool_calls) for turn in trajectory.turns) if trajectory else 0
    found.acts.update(each.tool for each in made[:done])
    return done


async def _scored(seed: int, rehearsal: Rehearsal, family: Handler, task: Any, ran: Ran, found: Found) -> None:
    found.acts["a program to score"] += 1
    try:
        score = await rehearsal.score(family, task, ran)
    except Exception as error:
        said = f"EVAL raised {type(error).__name__}: {error} over {str(ran.export)[:200]}"
        found.violations = [Violation(seed, said)]
        return
    if score.reward != 0.0:
        found.violations = [Violation(seed, f"EVAL gave {score.reward} for {str(ran.export)[:200]}")]


async def _failing_node(seed: int, chance: random.Random, watched: Watched, rehearsal: Rehearsal) -> Found:
    """A right solution is scored while sandboxes are killed from outside, once or twice."""
    found = Found()
    family = FAMILIES["human_eval"]
    task = task_of(family, solutions.PROBLEM)
    harm = chance.choice((_kill, _stop_and_kill, _remove))
    found.acts[f"the node: {harm.__name__.strip('_').replace('_', ' ')}"] += 1
    ran = Ran(trajectory=None, export={"solution": solutions.RIGHT})
    scoring = asyncio.create_task(rehearsal.score(family, task, ran))
    await _harmed(scoring, watched, harm, chance)
    try:
        reward = (await scoring).reward
    except ALLOWED_OF_NODES as error:
        found.ends[f"null: {type(error).__name__}"] += 1
    except Exception as error:
        found.violations = [Violation(seed, f"a failing node raised {type(error).__name__}: {error}"[:500])]
    else:
        found.ends["scored on a failing node"] += 1
        if reward != 1.0:
            found.violations = [Violation(seed, f"{harm.__name__}: a right solution earned {reward}")]
    return found


async def _harmed(scoring: "asyncio.Task[Any]", watched: Watched, harm: Any, chance: random.Random) -> None:
    """Strikes the first sandbox a moment after it was given, at some place of what is done in it."""
    while not watched.given and not scoring.done():
        await asyncio.sleep(0.001)
    await asyncio.wait({scoring}, timeout=chance.uniform(0.0, 0.3))
    if not scoring.done():
        harm(watched.given[0])


def _kill(handle: SandboxHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(handle.pid, signal.SIGKILL)


def _stop_and_kill(handle: SandboxHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(handle.pid, signal.SIGSTOP)
        os.kill(handle.pid, signal.SIGKILL)


def _remove(handle: SandboxHandle) -> None:
    shutil.rmtree(handle.directory, ignore_errors=True)
