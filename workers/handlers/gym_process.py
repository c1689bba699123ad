"""Work of reasoning-gym in the process of `workers.handlers.forks`."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from workers.handlers.blame import fault_of
from workers.handlers.gym_checks import REFUSED, checked
from workers.handlers.gym_client import DatasetPlace, GymRequest, GymScore


def load() -> None:
    """Takes a second or two."""
    import reasoning_gym  # noqa: F401


def entry(place: DatasetPlace) -> tuple[Any, Mapping[str, Any]]:
    """The data set and its entry. Raises `LookupError` for a place that does not exist."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if place.name in REFUSED:
        raise LookupError(f"the data set {place.name} is not offered: {REFUSED[place.name]}")
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
    request = msgspec.json.decode(line, type=GymRequest)
    try:
        return msgspec.json.encode(_reply(request))
    except Exception as error:  # scorers raise whatever reading a strange answer leads to
        return msgspec.json.encode(GymScore(fault=fault_of(error)))


def _reply(request: GymRequest) -> GymScore:
    try:
        dataset, found = entry(request.place)
    except LookupError as error:
        return GymScore(no_entry=str(error))
    answer = own_answer(request.place.name, found) if request.own else request.answer
    if answer is None:
        return GymScore(question=found["question"])
    return GymScore(score=score(request.place.name, dataset, answer, found))


def score(name: str, dataset: Any, answer: str, found: Mapping[str, Any]) -> float:
    """reasoning-gym's score, after our own look at the answer. Raises what its scorer raises."""
    return checked(name, float(dataset.score_answer(answer, found)), answer, found)


def own_answer(name: str, found: Mapping[str, Any]) -> str:
    """A text that the scorer of an entry must take: its answer, or one from what it keeps about itself."""
    if found["answer"] is not None:
        return str(found["answer"])
    about = found["metadata"]
    match name:
        case "graph_color":
            return json.dumps(about["possible_answer"])
        case "rubiks_cube":
            return str(about["example_correct_answer"])
        case "boxnet":
            return "[]"
        case _:
            return "A+1"
