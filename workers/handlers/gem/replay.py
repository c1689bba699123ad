"""An environment of GEM, replayed from its seed for each step, in the process of `workers.handlers.forks`.

An episode is its seed, the policy's texts and what its code printed: RUN and EVAL see the same one, on any node. What
GEM's Python tool is given to run is run elsewhere: the episode stops there and says so.
"""

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec

from prorl_mq.schema.task_schema import nearest
from workers.handlers.blame import ScorerReply, fault_of


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one piece of code."""

    ok: bool
    stdout: str
    stderr: str


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """An environment and what was done in it so far. `config` goes to it as keyword arguments."""

    env_id: str
    seed: int
    config: dict[str, Any] = {}
    wrapper: str | None = None  # one of GEM's tool wrappers, by its name there
    actions: Sequence[str] = ()
    printed: Sequence[Printed] = ()


class GemPosition(ScorerReply, frozen=True, kw_only=True):
    """Position after the last action. `reward` is the sum of all steps.

    `code`: the tool wants to have it run before the episode continues. `fault`: what the environment raised over its
    actions; `no_episode`: why there is none.
    """

    told: str = ""
    over: bool = False
    reward: float = 0.0
    code: str | None = None
    no_episode: str | None = None


class _Wanted(Exception):
    """Code that nobody has run yet."""


def load() -> None:
    """Takes a second or two."""
    import_module("gem")


def reply_to(line: bytes) -> bytes:
    """The position after the actions, or the fault of the episode."""
    episode = msgspec.json.decode(line, type=Episode)
    try:
        env = _made(episode)
        begun = env.reset(seed=episode.seed)
    except Exception as error:  # environments raise whatever they come upon
        told = f"{episode.env_id}: {type(error).__name__}: {error}"[:1000]
        return msgspec.json.encode(GemPosition(no_episode=told))
    try:
        return msgspec.json.encode(_stepped(env, begun, episode.actions))
    except Exception as error:
        return msgspec.json.encode(GemPosition(fault=fault_of(error)))


def _stepped(env: Any, begun: tuple[Any, Any], actions: Sequence[str]) -> GemPosition:
    """The last position. Raises what the environment raises."""
    told, info = begun
    reward, over = 0.0, False
    for action in actions:
        try:
            told, gained, terminated, truncated, info = env.step(action)
        except _Wanted as wanted:
            return GemPosition(reward=reward, code=str(wanted))
        reward, over = reward + float(gained), bool(terminated or truncated)
        if not math.isfinite(reward):
            raise ValueError(f"the reward of the step is {gained}")
        if over:
            break
    said = [str(part).strip("\n") for part in (info.get("prefix"), told, info.get("suffix")) if part]
    return GemPosition(told="\n".join(said), over=over, reward=reward)


def _made(episode: Episode) -> Any:
    known = import_module("gem.envs.registration").ENV_REGISTRY
    if episode.env_id not in known:
        raise LookupError(f"GEM has no such environment: {nearest(episode.env_id, known)}")
    env = import_module("gem").make(episode.env_id, **episode.config)
    if episode.wrapper is None:
        return env
    wrappers = import_module("gem.wrappers.wrapper_factory").WRAPPER_FACTORY
    python = [name for name in wrappers if name.startswith("python_tool")]
    if episode.wrapper not in python:
        raise LookupError(f"GEM has no such Python tool: {nearest(episode.wrapper, python)}")
    tool = import_module("gem.tools.python_code_tool")
    vars(tool)["run_python"] = _running(episode.printed)  # by this name its tool runs code
    return wrappers[episode.wrapper](env)


def _running(printed: Sequence[Printed]) -> Callable[..., tuple[bool, str, str]]:
    known = iter(printed)

    def run_python(code: str, *_: Any, **__: Any) -> tuple[bool, str, str]:
        for each in known:
            return each.ok, each.stdout, each.stderr
        raise _Wanted(code)

    return run_python
