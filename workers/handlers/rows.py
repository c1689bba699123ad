"""Reads rows of data sets as trainers have them: where the question stands, and where the answer.

A row of verl has `prompt` (messages, or their JSON text) and `reward_model.ground_truth` (a value, or its JSON text);
others have `question` or `problem`, and `answer`. The last message of the user's is the question.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from prorl_mq.schema.faults import Cause
from prorl_mq.schema.task_schema import nearest
from workers.external.request import apart
from workers.handler import OtherModel, Run

T = TypeVar("T")
QUESTIONS = ("prompt", "question", "problem", "question_content", "description")
ANSWERS = ("reward_model", "ground_truth", "answer", "extra_info", "solution", "solutions")


class BadRow(Exception):
    """A row has not what its family needs; trying again does not help."""

    retryable = False
    cause = Cause.ROW


class AgentRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The columns of a third-party agent."""

    agent: str | None = None  # a harness that runs inside the sandbox, in place of the loop of ours
    policies: Mapping[str, str] = {}  # model names of the harness → pools, which answer for these models
    trained: Sequence[str] = ()  # those of `policies` that are trained, as the policy is

    def __post_init__(self) -> None:
        apart(self.policies)
        if (empty := next((name for name, pool in self.policies.items() if not pool), None)) is not None:
            raise ValueError(f"policies: {empty!r} names no pool")
        if self.policies and self.agent is None:
            raise ValueError("policies: they are asked by a third-party agent, and the row names none (agent)")
        if (other := next((name for name in self.trained if name not in self.policies), None)) is not None:
            raise ValueError(
                f"trained: {other!r} is none of the row's policies ({nearest(other, list(self.policies))})"
            )

    async def others(self, context: Run) -> dict[str, OtherModel]:
        """The models of other pools that the agent asks."""
        return {name: await context.model(pool, trained=name in self.trained) for name, pool in self.policies.items()}


def fitting(fields: Any, kind: type[T]) -> T:
    """Fields of a row as `kind`. Raises `BadRow`, which names the field that does not fit."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise BadRow(f"the row does not fit its task family: {error}") from error


def question_of(payload: Mapping[str, Any]) -> str:
    """Raises `BadRow`."""
    for name in QUESTIONS:
        if name in payload:
            text = _text(parsed(payload[name]))
            if text:
                return text
    raise BadRow(f"the row has no question: none of {', '.join(QUESTIONS)} holds text or messages")


def ground_truth(sealed: Mapping[str, Any]) -> Any:
    """The answer, with JSON text read. Raises `BadRow`."""
    return parsed(given_truth(sealed))


def given_truth(sealed: Mapping[str, Any]) -> Any:
    """The answer as it stands there. Raises `BadRow`."""
    model = parsed(sealed.get("reward_model"))
    if isinstance(model, Mapping) and "ground_truth" in model:
        return model["ground_truth"]
    for name in ("ground_truth", "answer"):
        if sealed.get(name) is not None:
            return sealed[name]
    raise BadRow("the row has no answer: neither reward_model.ground_truth nor ground_truth nor answer")


def parsed(value: Any) -> Any:
    """The value of JSON text of an object or a list; everything else as it is."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _text(value: Any) -> str:
    """A text, or the content of the last message of the user's."""
    if isinstance(value, str):
        return value.strip()
    if not isinstance(value, list):
        return ""
    said = [message for message in value if isinstance(message, Mapping) and isinstance(message.get("content"), str)]
    asked = [message for message in said if message.get("role") == "user"] or said
    return str(asked[-1]["content"]).strip() if asked else ""
