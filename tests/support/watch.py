"""Watching a namespace: what one call changed, and that another changed nothing."""

import re

from redis.asyncio import Redis

from prorl_mq.store.layout.keys import Keys
from tests.support.state import Flat, Naming, State, changes, look

_FIELD = re.compile(r"[+-]? ?(?P<key>group:\S+) (?P<field>\S+)$")
_VERSION = re.compile(r"[+-]? ?group:\S+ changes$")
_CONTAINERS = frozenset({"zset", "set", "list", "stream"})


class Watch:
    """Compares the whole state with the one of the last call."""

    def __init__(self, redis: "Redis", keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._naming = Naming()
        self._last = State({})

    async def look(self) -> None:
        """From here on."""
        self._last = await look(self._redis, self._keys)
        self._naming(self._last)

    async def changes(self) -> Flat:
        """What has changed since the last call.

        Published events are left out, since `line` shows the same text; so is that a container has come or gone, and
        a group's version, which must change with its group.
        """
        now = await look(self._redis, self._keys)
        found = changes(self._naming, self._last, now)
        self._last = now
        _versioned(found)
        return {
            place: value
            for place, value in found.items()
            if not place.startswith("+ events#")
            and not (value in _CONTAINERS and place.count(" ") == 1)
            and not _VERSION.match(place)
        }

    async def now(self) -> State:
        """Every key as it is."""
        return await look(self._redis, self._keys)

    async def nothing_changed(self) -> None:
        now = await look(self._redis, self._keys)
        assert now == self._last, changes(Naming(), self._last, now)


def _versioned(found: Flat) -> None:
    """A verdict is bound to its group's version: each change that a verdict could see has a new one."""
    changed: dict[str, set[str]] = {}
    for place in found:
        if field := _FIELD.match(place):
            changed.setdefault(field["key"], set()).add(field["field"])
    for key, fields in changed.items():
        new_or_closed = fields & {"digest", "cursor", "n"}
        assert new_or_closed or not fields - {"warm"} or "changes" in fields, (key, fields)
