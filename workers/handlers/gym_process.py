"""What reasoning-gym does, in the process of `workers.handlers.forks`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from workers.handlers.gym_client import Place, Reply, Request


def load() -> None:
    """Takes a second or two."""
    import reasoning_gym  # noqa: F401


def entry(place: Place) -> tuple[Any, Mapping[str, Any]]:
    """The data set and its entry. Raises `LookupError` for a place that does not exist."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if place.name not in DATASETS:
        raise LookupError(f"reasoning-gym has no data set {place.name!r}; it has {', '.join(sorted(DATASETS))}")
    if not 0 <= place.index < place.size:
        raise LookupError(f"index {place.index} is outside a data set of size {place.size}")
    try:
        dataset = create_dataset(place.name, seed=place.seed, size=place.size, **place.config)
    except (TypeError, AssertionError) as error:
        raise LookupError(f"the data set {place.name} does not take this config: {error}") from error
    return dataset, dataset[place.index]


def reply_to(line: bytes) -> bytes:
    """A question, a score, or what stands against it."""
    return msgspec.json.encode(_reply(msgspec.json.decode(line, type=Request)))


def _reply(request: Request) -> Reply:
    try:
        dataset, found = entry(request.place)
    except LookupError as error:
        return Reply(no_entry=str(error))
    if request.answer is None:
        return Reply(question=found["question"])
    try:
        return Reply(score=float(dataset.score_answer(request.answer, found)))
    except Exception as error:  # scorers raise whatever reading a strange answer leads to
        return Reply(no_score=f"{type(error).__name__}: {error}"[:500])
