"""Games of textarena for one player: the policy plays by a tool until the game is over."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from workers.agent.tools import Arguments, Resumes, Tool, ToolAnswer, ToolContext
from workers.handler import Eval, Init, JobView, Prepared, Ran, Run, Schema, Score
from workers.handlers.asking import OPTIONS, Prompts, ask
from workers.handlers.blame import Blamed, Raised, blaming, reply_of
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.games.replay import Game, GamePosition
from workers.handlers.rows import BadRow, fitting

MAX_ACTIONS = 1000
PROMPTS = Prompts(
    tools=("think",),
    with_tools="Play the game. Make every move with the tool play, until the game is over.",
    without_tools="Play the game. Make every move with the tool play, until the game is over.",
)


class Play(Arguments, frozen=True, kw_only=True):
    """Makes one move."""

    action: Annotated[str, Meta(description="The move, as the game wants it written.", max_length=4000)]


class Games:
    """`{env_id, seed, config?}`. The reward is the game's own; a game that was not ended earns 0.

    A move that the game raises over is none: the policy is told so, and may make another one.
    """

    data_sources: Sequence[str] = ("textarena",)
    schema = Schema(required=("env_id", "seed"), optional=("config", *OPTIONS))
    needs_sandbox = False
    needs = ("textarena",)

    def __init__(self) -> None:
        self._forks = Forks("workers.handlers.games.replay", ForkLimits(cpu_s=30))

    async def init(self, context: Init) -> Prepared:
        try:
            position = await self._position(_game(context.job))
        except Raised as raised:
            raise BadRow(f"the game {context.job.payload['env_id']} cannot be set up: {raised}") from raised
        return Prepared(carry={"rules": position.told})

    async def run(self, context: Run) -> Ran:
        actions: list[str] = []

        async def play(_: ToolContext, arguments: Play) -> ToolAnswer:
            if len(actions) >= MAX_ACTIONS:
                return ToolAnswer(text=f"Error: the game has had {MAX_ACTIONS} moves and takes no more", ok=False)
            position = await self._played(context.job, [*actions, arguments.action])
            if isinstance(position, Blamed):
                return ToolAnswer(text=f"Error: the game does not take this move ({position.reason})", ok=False)
            actions.append(arguments.action)
            return ToolAnswer(text=position.told or "[the game says nothing]", final=position.over)

        tool = Tool(name="play", description=Play.__doc__ or "", arguments=Play, run=play, resumes=Resumes.AGAIN)
        result = await ask(context, PROMPTS, context.carry["rules"], more=[tool])
        return Ran(trajectory=result.trajectory, export={"actions": actions}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        actions = (context.export or {}).get("actions") or []
        position = await self._played(context.job, actions, EvalClock.of(context))
        parts = {"moves": float(len(actions))}
        if isinstance(position, Blamed):
            return Score(reward=0.0, parts=parts, note=f"the game does not take the last move: {position.reason}")
        if position.reward is None:
            return Score(reward=0.0, parts=parts, note="the game was not ended")
        return Score(reward=position.reward, parts=parts)

    async def aclose(self) -> None:
        """Ends the process of textarena."""
        await asyncio.to_thread(self._forks.close)

    async def _played(
        self, job: JobView, actions: Sequence[str], clock: EvalClock | None = None
    ) -> GamePosition | Blamed:
        """The position after the actions, or their fault: a game that begins is not to blame for how it continues."""
        before, what = [_game(job, actions[:-1]), _game(job)], f"the game {job.payload['env_id']}"
        return await blaming(self._position, _game(job, actions), before, what, clock)

    async def _position(self, game: Game, given: AskTime | None = None) -> GamePosition:
        """Raises `Raised` for its actions, `BadRow` for a game that there is not."""
        position = await reply_of(self._forks, GamePosition, game, given)
        if position.no_game is not None:
            raise BadRow(position.no_game)
        return position


def _game(job: JobView, actions: Sequence[str] = ()) -> Game:
    wanted = {name: job.payload[name] for name in ("env_id", "seed", "config") if name in job.payload}
    return fitting({**wanted, "actions": list(actions)}, Game)
