"""A game of textarena, replayed from its seed for each move, in the process of `workers.handlers.forks`.

Nothing is kept between moves: a game is its seed and its actions, so RUN and EVAL see the same one, on any node.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from prorl_mq.schema.task_schema import nearest
from workers.handlers.blame import ScorerReply, fault_of


class Game(msgspec.Struct, frozen=True, kw_only=True):
    """A game and what was played so far. `config` goes to the game as keyword arguments."""

    env_id: str
    seed: int
    config: dict[str, Any] = {}
    actions: Sequence[str] = ()


class GamePosition(ScorerReply, frozen=True, kw_only=True):
    """Output of the game since the last action. `reward` is there once it is over; `no_game`: there is none.

    `fault`: what the game raised over its actions.
    """

    told: str = ""
    over: bool = False
    reward: float | None = None
    no_game: str | None = None


def load() -> None:
    """Takes a second or two."""
    import textarena  # noqa: F401


def reply_to(line: bytes) -> bytes:
    """The position after the actions, or the fault of the game."""
    game = msgspec.json.decode(line, type=Game)
    try:
        env = begun(game)
    except Exception as error:  # games raise whatever they come upon
        return msgspec.json.encode(GamePosition(no_game=f"{game.env_id}: {type(error).__name__}: {error}"[:1000]))
    try:
        return msgspec.json.encode(played(env, game.actions))
    except Exception as error:
        return msgspec.json.encode(GamePosition(fault=fault_of(error)))


def replayed(game: Game) -> GamePosition:
    """The last position. Raises what the game raises."""
    return played(begun(game), game.actions)


def begun(game: Game) -> Any:
    """The game before the first action."""
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    if game.env_id not in ENV_REGISTRY:
        raise LookupError(f"textarena has no such game: {nearest(game.env_id, ENV_REGISTRY)}")
    raw = f"{game.env_id}-raw"  # without what repeats the whole story with every observation
    env = textarena.make(raw if raw in ENV_REGISTRY else game.env_id, **game.config)
    env.reset(num_players=1, seed=game.seed)
    return env


def played(env: Any, actions: Sequence[str]) -> GamePosition:
    told, over = _told(env), False
    for action in actions:
        over = bool(env.step(action)[0])
        told = _told(env)
        if over:
            break
    reward = float((env.close()[0] or {}).get(0, 0.0)) if over else 0.0
    if not math.isfinite(reward):
        raise ValueError(f"the game's reward is {reward}")
    return GamePosition(told=told, over=over, reward=reward if over else None)


def _told(env: Any) -> str:
    """New output, without the player's own words."""
    observation = env.get_observation()[1]
    if isinstance(observation, str):
        return observation
    return "\n".join(str(text) for author, text, _ in observation if author != 0)
