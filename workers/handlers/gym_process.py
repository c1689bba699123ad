"""Work of reasoning-gym in the process of `workers.handlers.forks`."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from workers.handlers.blame import fault_of
from workers.handlers.gym_checks import REFUSED, checked
from workers.handlers.gym_client import DatasetPlace, GymEntry, GymRequest, GymScore

_BOARDS = frozenset({"arc_agi", "rearc"})  # their scorers compare tuples, which JSON has not
_OWN_EARNS = 0.99


def load() -> None:
    """Takes a second or two."""
    import reasoning_gym  # noqa: F401


def entry(place: DatasetPlace) -> tuple[Any, Mapping[str, Any]]:
    """The data set and its entry. Raises `LookupError` for a place that does not exist."""
    from reasoning_gym.factory import create_dataset

    _known(place.name)
    if not 0 <= place.index < place.size:
        raise LookupError(f"index {place.index} is outside a data set of size {place.size}")
    try:
        dataset = create_dataset(place.name, seed=place.seed, size=place.size, **place.config)
    except (TypeError, AssertionError) as error:
        raise LookupError(f"the data set {place.name} does not take this config: {error}") from error
    return dataset, dataset[place.index]


def brought(given: GymEntry) -> tuple[Any, Mapping[str, Any]]:
    """A data set of that name, for its scorer, and the entry. Raises `LookupError` for what is none of its entries."""
    from reasoning_gym.factory import create_dataset

    _known(given.name)
    if lost := [name for name in ("question", "answer", "metadata") if name not in given.entry]:
        raise LookupError(f"the entry of {given.name} has no {lost[0]!r}")
    found = given.entry
    if given.name in _BOARDS:
        found = {**found, "metadata": {**found["metadata"], "output": tuple(map(tuple, found["metadata"]["output"]))}}
    return create_dataset(given.name), found


def _known(name: str) -> None:
    from reasoning_gym.factory import DATASETS

    if name in REFUSED:
        raise LookupError(f"the data set {name} is not offered: {REFUSED[name]}")
    if name not in DATASETS:
        raise LookupError(f"reasoning-gym has no data set {name!r}; it has {', '.join(sorted(DATASETS))}")


def reply_to(line: bytes) -> bytes:
    """A question, a score, or what stands against it."""
    request = msgspec.json.decode(line, type=GymRequest)
    try:
        return msgspec.json.encode(_reply(request))
    except Exception as error:  # scorers raise whatever reading a strange answer leads to
        return msgspec.json.encode(GymScore(fault=fault_of(error)))


def _reply(request: GymRequest) -> GymScore:
    try:
        name, dataset, found = _asked(request)
    except LookupError as error:
        return GymScore(no_entry=str(error))
    answer = own_answer(name, found) if request.own else request.answer
    if answer is None:
        return GymScore(question=found["question"])
    made = score(name, dataset, answer, found)
    if request.entry is not None and made < _OWN_EARNS and not _takes_its_own(name, dataset, found):
        raise ValueError(
            f"the scorer of {name} gives the entry's own answer no full score: the entry is damaged, or its data set "
            "was made with another configuration than the usual one"
        )
    return GymScore(score=made)


def _takes_its_own(name: str, dataset: Any, found: Mapping[str, Any]) -> bool:
    """False where nothing that is said can be right. An entry that keeps no answer of its own is believed."""
    return found["answer"] is None or score(name, dataset, str(found["answer"]), found) >= _OWN_EARNS


def _asked(request: GymRequest) -> tuple[str, Any, Mapping[str, Any]]:
    if request.entry is not None:
        return (request.entry.name, *brought(request.entry))
    if request.place is None:
        raise LookupError("neither a place nor an entry was named")
    return (request.place.name, *entry(request.place))


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
