"""Answers of all cells as one. What a cell could not be asked for is named in `unavailable`."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from api.cells.cell import Cell, CellAnswer, CellLost
from api.cells.directory import CellRefusal, load_of
from api.problems import Problem, unavailable

Document = dict[str, Any]
SUMS: Final = (
    "backlog_groups", "leased", "delayed", "paused", "due", "memory_bytes", "memory_limit_bytes", "nodes_in_all",
)  # fmt: skip
NODES: Final = 100  # as a cell shows at most


class CellAnswers(NamedTuple):
    """The answers by cell, and the names of those that gave none."""

    by_cell: Mapping[str, Document]
    unavailable: Sequence[str]


async def asked(
    cells: Iterable[Cell], method: str, target: str, headers: Mapping[str, str], body: bytes = b"", *, shape: Any
) -> CellAnswers:
    """Asks all at once. An answer without a field that `shape` needs, as of another release or of what is no API, is
    none. Raises `CellRefusal` where cells refuse it, a `Problem` of the same status if others have answered, and one of
    503 if none answers.
    """
    cells = list(cells)

    async def one(cell: Cell) -> CellAnswer | None:
        try:
            answer = await cell.ask(method, target, headers, body)
        except CellLost:
            return None
        return None if answer.status == 429 else answer

    answers = dict(zip((cell.name for cell in cells), await asyncio.gather(*map(one, cells)), strict=True))
    told = {name: answer.json() for name, answer in answers.items() if answer is not None and _fits(answer, shape)}
    for name, answer in answers.items():
        if answer is not None and 400 <= answer.status < 500:
            if not told:
                raise CellRefusal(answer.status, answer.body, answer.headers)
            others = ", ".join(told)
            raise Problem(answer.status, f"cell {name} refuses it, and {others} did not: {answer.why[:500]}")
    if not told:
        raise unavailable("no cell gives an answer of this release's API: try again, and look at the addresses")
    return CellAnswers(told, [name for name in answers if name not in told])


def _fits(answer: CellAnswer, shape: Any) -> bool:
    try:
        msgspec.json.decode(answer.body, type=shape)
    except msgspec.MsgspecError:
        return False
    return 200 <= answer.status < 300


def runs(told: CellAnswers) -> Document:
    """Each run with the name of its cell; a run that has left a cell is told by the other one."""
    found = [{**run, "cell": name} for name, document in told.by_cell.items() for run in document["runs"]]
    return {"runs": sorted(found, key=lambda run: (run["run_id"], run["cell"])), "unavailable": told.unavailable}


def overview(told: CellAnswers) -> Document:
    """Sums; nodes, and what waits, have the name of their cell in front."""
    documents = told.by_cell
    stages: dict[str, Document] = {}
    for each in (stage for document in documents.values() for stage in document["stages"]):
        sums = stages.setdefault(each["stage"], {**each, **dict.fromkeys(_counts(each), 0), "oldest_age_s": 0.0})
        for name in _counts(each):
            sums[name] += each[name]
        sums["oldest_age_s"] = max(sums["oldest_age_s"], each["oldest_age_s"])
    nodes = [{**node, "node": f"{name}/{node['node']}"} for name, each in documents.items() for node in each["nodes"]]
    nodes.sort(key=lambda node: -node["lane_queued"] - node["lane_running"] - sum(node["busy"].values()))
    rates = Counter[str]()
    for each in documents.values():
        rates.update(each["rates"]["per_minute"])
    return {
        "at_ms": max(each["at_ms"] for each in documents.values()),
        "stages": list(stages.values()),
        "nodes": nodes[:NODES],
        "rates": {
            "window_s": min(each["rates"]["window_s"] for each in documents.values()),
            "per_minute": dict(rates),
        },
        "waits": [
            *(f"cell {name} does not answer" for name in told.unavailable),
            *(f"{name}: {line}" for name, each in documents.items() for line in each["waits"]),
        ],
        **{name: sum(each[name] for each in documents.values()) for name in SUMS},
        "unavailable": told.unavailable,
    }


def _counts(stage: Document) -> list[str]:
    return [name for name in stage if name not in {"stage", "oldest_age_s"}]


def advice(told: CellAnswers) -> Document:
    """That of the cell whose limit is one; a cell that does not answer is the first limit of all."""
    said = told.by_cell.items()
    name, found = next((pair for pair in said if pair[1]["limit"] != "nothing"), next(iter(said)))
    says = f"Cell {name}: {found['says']}"
    if told.unavailable:
        says = f"No answer from {', '.join(told.unavailable)}. {says}"
    return {**found, "says": says, "unavailable": told.unavailable}


def pools(told: CellAnswers) -> Document:
    """Pools of one name are one, with the backends of all cells."""
    found: dict[str, list[tuple[str, Document]]] = {}
    for name, each in ((name, pool) for name, document in told.by_cell.items() for pool in document["pools"]):
        found.setdefault(each["policy"]["pool"], []).append((name, each))
    merged = [
        {
            "policy": policy({name: each["policy"] for name, each in parts}),
            "backends": _backends(dict(parts)),
        }
        for _, parts in sorted(found.items())
    ]
    return {"pools": merged, "unavailable": told.unavailable}


def policy(by_cell: Mapping[str, Document]) -> Document:
    """The oldest version that a cell's pool is told to serve, with what all backends say."""
    behind = min(by_cell.values(), key=lambda each: -1 if each["version"] is None else each["version"])
    return {**behind, "backends": [backend for each in by_cell.values() for backend in each["backends"]]}


def backends(told: CellAnswers) -> Document:
    return {"backends": _backends(told.by_cell), "unavailable": told.unavailable}


def _backends(by_cell: Mapping[str, Document]) -> list[Document]:
    return [{**backend, "cell": name} for name, each in by_cell.items() for backend in each["backends"]]


def cells(names: Iterable[Cell], overviews: CellAnswers, runs_of: CellAnswers) -> Document:
    """Each cell: whether it answers, what it holds, and its share of what the caller's runs have in flight."""
    held = {name: sum(run["in_flight"] for run in each["runs"]) for name, each in runs_of.by_cell.items()}
    total = sum(held.values())
    found = []
    for cell in names:
        now = overviews.by_cell.get(cell.name)
        line: Document = {"cell": cell.name, "url": cell.url, "answers": now is not None}
        if now is not None:
            load = load_of(now)
            line |= {
                "load": None if load == float("inf") else round(load, 3),
                "slots": sum(stage["slots"] for stage in now["stages"] if stage["stage"] == "run"),
                "backlog_groups": now["backlog_groups"],
                "memory_bytes": now["memory_bytes"],
                "memory_limit_bytes": now["memory_limit_bytes"],
            }
        if (each := runs_of.by_cell.get(cell.name)) is not None:
            line |= {"runs": len(each["runs"]), "in_flight": held[cell.name]}
            line["share"] = round(held[cell.name] / total, 3) if total else None
        found.append(line)
    return {"cells": found}


def metrics(by_cell: Mapping[str, str]) -> str:
    """Prometheus text with a label `cell`; help and type stand once for each family."""
    heads: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    for name, text in by_cell.items():
        family = ""
        for line in text.split("\n"):  # `splitlines` would cut label values, which may have other ends of lines
            if line.startswith("# "):
                word, _, rest = line[2:].partition(" ")
                family = rest.partition(" ")[0]
                if all(not each.startswith(f"# {word} {family} ") for each in heads.setdefault(family, [])):
                    heads[family].append(line)
            elif line:
                lines.setdefault(family, []).append(_labelled(line, name))
    return "".join(f"{line}\n" for family in heads for line in [*heads[family], *lines.get(family, [])])


def _labelled(line: str, cell: str) -> str:
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f'{name}{{cell="{cell}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{cell="{cell}"}} {value}'
