"""The tasks of installed verifiers environments, as far as somebody has asked for them.

An environment is the operator's code, as a task family is, and a name is imported: those that tasks may name are on
the operator's list (PRORL_VERIFIERS, separated by commas). What is used of an environment are its tasks and how they
score. One that wants more of verifiers (tool servers, containers, a rollout of its own) is refused with the reason.
"""

import inspect
import itertools
import os
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from prorl_mq.schema.task_schema import nearest
from workers.agent.hermes import Message
from workers.handlers.rows import BadRow

LISTED = "PRORL_VERIFIERS"
MAX_INDEX = 1_000_000
_OPERATORS = ("id", "task", "system_prompt")  # fields of a configuration that name code, or files of this host
_KEPT = 16  # environments with their configurations
_HOOKS = ("setup", "finalize", "stage_verifier")  # they act in a runtime of verifiers


class EnvironmentPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A task. `config` goes to the environment's taskset."""

    env_id: str
    index: Annotated[int, Meta(ge=0, le=MAX_INDEX)]
    config: dict[str, Any] = {}


class Environments:
    """Environments that were read. One caller at a time reads; the others wait."""

    def __init__(self) -> None:
        self._read: dict[bytes, tuple[Iterator[Any], list[Any]]] = {}
        self._reading = threading.Lock()

    def task(self, place: EnvironmentPlace) -> Any:
        """Blocks, for seconds the first time. Raises `BadRow`, and what the environment raises."""
        key = msgspec.json.encode([place.env_id, place.config], order="deterministic")
        with self._reading:
            tasks, read = self._read.pop(key) if key in self._read else (_tasks(place), [])
            read += itertools.islice(tasks, max(0, place.index + 1 - len(read)))
            if place.index >= len(read):
                raise BadRow(f"the environment {place.env_id} has {len(read)} tasks, and none with index {place.index}")
            while len(self._read) >= _KEPT:
                del self._read[next(iter(self._read))]
            self._read[key] = (tasks, read)
            return read[place.index]


def config_of(place: EnvironmentPlace) -> Any:
    """The taskset's own configuration. Raises `BadRow`."""
    kind = import_module("verifiers.v1.utils.loaders").taskset_config_type(place.env_id)
    try:
        return kind.model_validate({**place.config, "id": place.env_id})
    except ValueError as error:
        raise BadRow(f"the environment {place.env_id} does not take this config: {error}") from error


def conversation(task: Any) -> list[Message]:
    """The messages that a task begins with, the system's first. Raises `BadRow` for what is no text."""
    prompt, system = task.data.prompt, task.data.system_prompt
    asked = [Message(role="user", content=prompt)] if isinstance(prompt, str) else [_message(each) for each in prompt]
    if system:
        asked = [Message(role="system", content=system), *(each for each in asked if each.role != "system")]
    return asked


def _message(told: Any) -> Message:
    if told.role == "tool" or not isinstance(told.content, str) or getattr(told, "tool_calls", None):
        raise BadRow("the environment's prompt has more than text: a picture, or calls of tools")
    return Message(role=told.role, content=told.content)


def _tasks(place: EnvironmentPlace) -> Iterator[Any]:
    """One that can be run after the other."""
    listed = [name.strip() for name in os.environ.get(LISTED, "").split(",") if name.strip()]
    if place.env_id not in listed:
        hint = nearest(place.env_id, listed) if listed else "there is none"
        raise BadRow(f"no verifiers environment {place.env_id!r} is on the operator's list ({LISTED}): {hint}")
    if kept := [name for name in _OPERATORS if name in place.config]:
        raise BadRow(f"the config of {place.env_id} may not set {', '.join(kept)}: that is the operator's to say")
    loaders = import_module("verifiers.v1.utils.loaders")
    kind = loaders.environment_class(place.env_id)
    if kind.__name__ != "SingleAgentEnv":
        raise BadRow(
            f"the environment {place.env_id} has a rollout of its own ({kind.__name__}), which is not run here"
        )
    taskset = loaders.load_taskset(config_of(place))
    if taskset.toolsets(taskset.config):
        raise BadRow(f"the environment {place.env_id} brings tool servers of its own, which are not run here")
    return _fitting(place.env_id, taskset)


def _fitting(env_id: str, taskset: Any) -> Iterator[Any]:
    for task in taskset:
        if fault := _fault(task):
            raise BadRow(f"the environment {env_id} {fault}, which is not run here")
        yield task


def _fault(task: Any) -> str | None:
    """The needs of a task beyond a conversation and a score."""
    kind, plain = type(task), import_module("verifiers.v1").Task
    intercepts = import_module("verifiers.v1.utils.decorators").discover_decorated(task, "intercept")
    acts = [name for name in _HOOKS if getattr(kind, name) is not getattr(plain, name)]
    scores = [hook.__name__ for hook in (*task.hooks("reward"), *task.hooks("metric")) if _needs_runtime(hook)]
    faults: dict[str, object] = {
        "needs a container of its own": kind.NEEDS_CONTAINER or task.data.image or task.data.artifacts,
        "brings skills of its own": task.data.skills,
        "brings tool servers of its own": kind.toolsets(task.config),
        f"acts in a runtime of verifiers ({', '.join(acts)})": acts,
        f"scores in a runtime of verifiers ({', '.join(scores)})": scores,
        "takes part in the rollout (stop, intercept)": task.hooks("stop") or intercepts,
        "asks a judge over the network": task.config.judges,
        "lets a user begin": task.data.prompt is None,
    }
    return next((fault for fault, is_there in faults.items() if is_there), None)


def _needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
