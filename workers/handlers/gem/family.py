"""Environments of GEM: what the policy writes is the action, what the environment observes is said to it.

There are no tool calls. GEM's Python tool reads code out of the text; it runs in the job's sandbox. The package pins
what the service needs newer: install it without its dependencies (`pip install --no-deps gem-llm`).
"""

import asyncio
from collections.abc import Sequence

import msgspec

from sandbox.protocol import Sandbox
from workers.handler import Eval, Init, JobView, Prepared, Ran, Run, Schema, Score
from workers.handlers.asking import OPTIONS, Prompts, ask
from workers.handlers.blame import Blamed, Raised, blaming, reply_of
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.gem.replay import Episode, GemPosition, Printed
from workers.handlers.rows import BadRow, fitting

CODE_S = 5.0  # as GEM's own tool
PRINTED_BYTES = 16 << 10
PROMPTS = Prompts(tools=(), with_tools="", without_tools="")  # the environment's own words are all that is said


class Gem:
    """`{env_id, seed, config?, wrapper?}`. The reward is the sum of all steps, also of an episode that was cut.

    A text that the environment raises over ends the episode and earns nothing: what was gained until then is lost,
    what was deducted stays.
    """

    data_sources: Sequence[str] = ("gem",)
    schema = Schema(required=("env_id", "seed"), optional=("config", "wrapper", *OPTIONS))
    needs_sandbox = True  # if a task's payload names a wrapper
    needs = ("gem",)

    def __init__(self) -> None:
        self._forks = Forks("workers.handlers.gem.replay", ForkLimits(cpu_s=30))

    async def init(self, context: Init) -> Prepared:
        episode = _episode(context.job)
        try:
            position = await self._position(episode)
        except Raised as raised:
            raise BadRow(f"the environment {episode.env_id} cannot be set up: {raised}") from raised
        sandbox = (await context.sandbox()).handle if episode.wrapper else None
        return Prepared(carry={"told": position.told}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        actions: list[str] = []
        printed: list[Printed] = []

        async def reply(text: str) -> str | None:
            actions.append(text)
            position = await self._stepped(_episode(context.job, actions, printed))
            while isinstance(position, GemPosition) and position.code is not None and context.sandbox is not None:
                printed.append(await _run(context.sandbox, position.code))
                position = await self._stepped(_episode(context.job, actions, printed))
            return None if isinstance(position, Blamed) or position.over else position.told

        resumes = context.sandbox is None  # what code has changed there would be changed twice
        result = await ask(context, PROMPTS, context.carry["told"], reply=reply, resumes=resumes)
        export = {"actions": actions, "printed": msgspec.to_builtins(printed)}
        return Ran(trajectory=result.trajectory, export=export, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        done = context.export or {}
        actions, printed = done.get("actions", []), msgspec.convert(done.get("printed", []), list[Printed])
        episode = _episode(context.job, actions, printed)
        position = await self._stepped(episode, EvalClock.of(context))
        parts = {"steps": float(len(actions)), "code_runs": float(len(printed))}
        if isinstance(position, Blamed):
            gained = min(0.0, position.taken.reward)
            return Score(reward=gained, parts=parts, note=f"it ended the episode: {position.reason}")
        return Score(reward=position.reward, parts=parts, note=None if position.over else "the episode was not ended")

    async def aclose(self) -> None:
        """Ends the process of GEM."""
        await asyncio.to_thread(self._forks.close)

    async def _stepped(self, episode: Episode, clock: EvalClock | None = None) -> GemPosition | Blamed:
        """The position after the actions, or their fault: one that begins is not to blame for how it continues."""
        what = f"the environment {episode.env_id}"
        return await blaming(self._position, episode, [_without_last(episode), _begun(episode)], what, clock)

    async def _position(self, episode: Episode, given: AskTime | None = None) -> GemPosition:
        """Raises `Raised` for its actions, `BadRow` for an environment that there is not."""
        position = await reply_of(self._forks, GemPosition, episode, given)
        if position.no_episode is not None:
            raise BadRow(position.no_episode)
        return position


def _without_last(episode: Episode) -> Episode:
    return msgspec.structs.replace(episode, actions=episode.actions[:-1])


def _begun(episode: Episode) -> Episode:
    return msgspec.structs.replace(episode, actions=(), printed=())


def _episode(job: JobView, actions: Sequence[str] = (), printed: Sequence[Printed] = ()) -> Episode:
    wanted = {name: job.payload[name] for name in ("env_id", "seed", "config", "wrapper") if name in job.payload}
    return msgspec.structs.replace(fitting(wanted, Episode), actions=list(actions), printed=list(printed))


async def _run(sandbox: Sandbox, code: str) -> Printed:
    """As a program of its own, without what ran before."""
    done = await sandbox.run(["python3", "-c", code], timeout_s=CODE_S, output_bytes=PRINTED_BYTES)
    said = [done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()]
    if done.timed_out:
        said = ["", f"\nExecution timed out after {CODE_S:.0f} seconds."]
    return Printed(ok=done.exit_code == 0 and not done.timed_out, stdout=said[0], stderr=said[1])
