"""The whole state of a namespace, flat enough to compare, and what changed between two moments."""

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from redis.asyncio import Redis

from prorl_mq.store.layout.keys import Keys

Flat = dict[str, str]
Pairs = Iterator[tuple[str, str]]

_ENTRY = re.compile(r"\d{13,16}-\d+")
_TOKEN = re.compile(r"(?<![\d.-])(?:\d+-[0-9a-f]{8}\.\d+|\d{16})(?![\d-])")  # or the id of an announcement
_TIME = re.compile(r"(?<![\d.-])\d{13}(?![\d-])")


class State:
    """One look at every key of a namespace: exactly as it is, without what only time changes."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.flat == other.flat

    def __hash__(self) -> int:
        return hash(tuple(self.flat.items()))

    def __repr__(self) -> str:
        return "\n".join(f"{place}: {value}" for place, value in sorted(self.flat.items()))

    def without(self, *prefixes: str) -> "State":
        """The state beside some keys."""
        return State({place: value for place, value in self.flat.items() if not place.startswith(prefixes)})


async def look(redis: "Redis", keys: Keys) -> State:
    """Reads every key of the namespace, with its type, value and whether it has a TTL."""
    execute: Callable[..., Awaitable[Any]] = redis.execute_command
    names = sorted(set(await _scan(execute, keys.prefix.replace("{", "[{]") + "*")) - {keys.epoch.encode()})
    about = await _together(redis, [command for name in names for command in (("TYPE", name), ("PTTL", name))])
    kinds = [kind.decode() for kind in about[::2]]
    values = await _together(redis, [(*_READ[kind][0](name),) for kind, name in zip(kinds, names, strict=True)])
    flat: Flat = {}
    for name, kind, ttl, value in zip(names, kinds, about[1::2], values, strict=True):
        short = _text(name).removeprefix(keys.prefix)
        flat[short] = kind
        if ttl >= 0:
            flat[f"{short} ttl"] = "yes"
        for place, held in _READ[kind][1](value):
            flat[f"{short} {place}"] = held.replace(keys.prefix, "")
    return State(flat)


async def _together(redis: "Redis", commands: list[tuple[Any, ...]]) -> list[Any]:
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(await pipeline.execute()) if commands else []


class Naming:
    """Gives times, tokens and entry ids names that do not change from run to run: `<ms>`, `T1`, `stage:init#1`."""

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}
        self._entries: dict[tuple[str, str], str] = {}

    def __call__(self, state: State) -> Flat:
        self._learn(state.flat)
        return {self._token(place): self._value(place, value, state.flat) for place, value in self._places(state.flat)}

    def _learn(self, flat: Flat) -> None:
        text = "\n".join(f"{place} {value}" for place, value in flat.items() if not _is_score(place, flat))
        for token in sorted(set(_TOKEN.findall(text)) - set(self._tokens)):
            self._tokens[token] = f"T{len(self._tokens) + 1}"
        for place in sorted(flat, key=_entry_order):
            key, _, entry = place.partition(" ")
            if flat.get(key) == "stream" and _ENTRY.fullmatch(entry) and (key, entry) not in self._entries:
                number = 1 + sum(stream == key for stream, _ in self._entries)
                self._entries[key, entry] = f"{key}#{number}"

    def _places(self, flat: Flat) -> Iterator[tuple[str, str]]:
        for place, value in flat.items():
            key, _, inner = place.partition(" ")
            match = _ENTRY.search(inner)
            if match and flat.get(key) == "stream":
                yield inner.replace(match[0], self._entries.get((key, match[0]), f"{key}#?")), value
            elif match and key.startswith("answers:"):  # members are entries of the run's results
                stream = key.replace("answers:", "results:")
                yield f"{key} {self._entries.get((stream, match[0]), f'{stream}#?')}", value
            else:
                yield place, value

    def _value(self, place: str, value: str, flat: Flat) -> str:
        key, _, field = place.partition(" ")
        if _is_score(place, flat) and len(value) >= 13:
            return "<ms>"
        if field == "entry" and value:
            stream = flat[f"{key} stream"]
            return self._entries.get((stream, value), f"{stream}#?")
        if field == "cursor":
            return "<cursor>"
        if key.startswith("stage:") and value.startswith("j="):  # what follows is `test_entries.py`'s
            return value.partition("=f=")[0]
        if "\\x" in value:
            return "<packed>"
        value = _TIME.sub("<ms>", self._token(value))
        return _events(value) if "\t" in value else value

    def _token(self, text: str) -> str:
        return _TOKEN.sub(lambda match: self._tokens.get(match[0], match[0]), text)


def changes(naming: Naming, before: State, after: State) -> Flat:
    """What is different: `+` for new places, `-` for gone ones, `old → new` for the others; lines show their tail."""
    old, new = naming(before), naming(after)
    found = {f"+ {place}": value for place, value in new.items() if place not in old}
    found |= {f"- {place}": value for place, value in old.items() if place not in new}
    for place in old.keys() & new.keys():
        was, now = old[place], new[place]
        if was != now:
            tail = now[len(was) :] if place.endswith((" line", " commits")) and now.startswith(was) else None
            found[place] = f"… {tail.strip()}" if tail else f"{was} → {now}" if now else "emptied"
    return found


def _events(lines: str) -> str:
    """A time line without its times, its fields apart by spaces and its events by semicolons."""
    return "".join(" ".join(line.replace("<ms>", "").split()) + "; " for line in lines.splitlines())


async def _scan(execute: Callable[..., Awaitable[Any]], pattern: str) -> set[bytes]:
    cursor, names = b"0", set[bytes]()
    while True:
        cursor, page = await execute("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        names.update(page)
        if cursor == b"0":
            return names


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _is_score(place: str, flat: Flat) -> bool:
    return flat.get(place.partition(" ")[0]) == "zset" and " " in place and not place.endswith(" ttl")


def _entry_order(place: str) -> tuple[str, int, int]:
    key, _, entry = place.partition(" ")
    if not _ENTRY.fullmatch(entry):
        return key, 0, 0
    milliseconds, _, sequence = entry.partition("-")
    return key, int(milliseconds), int(sequence)


def _pairs(row: list[bytes]) -> Pairs:
    return ((_text(field), _text(value)) for field, value in zip(row[::2], row[1::2], strict=True))


def _stream(about: list[Any]) -> Pairs:
    fields = dict(zip(about[::2], about[1::2], strict=True))
    for entry, body in fields[b"entries"]:
        yield _text(entry), _text(b"=".join(body))
    for row in fields[b"groups"]:
        group = dict(zip(row[::2], row[1::2], strict=True))
        for consumer in group[b"consumers"]:
            yield f"consumer {_text(consumer[1])}", "known"
        for pending in group[b"pending" if b"pending" in group else b"pel"]:
            yield f"pending {_text(pending[0])}", _text(pending[1])


_READ: dict[str, tuple[Callable[[bytes], tuple[Any, ...]], Callable[[Any], Pairs]]] = {
    "string": (lambda name: ("GET", name), lambda value: iter([("value", _text(value))])),
    "list": (lambda name: ("LRANGE", name, 0, -1), lambda row: ((str(i), _text(each)) for i, each in enumerate(row))),
    "set": (lambda name: ("SMEMBERS", name), lambda row: ((_text(each), "member") for each in row)),
    "hash": (lambda name: ("HGETALL", name), _pairs),
    "zset": (lambda name: ("ZRANGE", name, 0, -1, "WITHSCORES"), _pairs),
    "stream": (lambda name: ("XINFO", "STREAM", name, "FULL", "COUNT", 0), _stream),
}
