"""The models that answer for an evaluation: noted in its directory, and compared before and while it samples."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.evaluation.definition import Definition

EVERY_S: Final = 5.0
TRY_S: Final = 0.5
TRIES: Final = 12  # the service asks a backend every two seconds
NOT_THERE: Final = 404


class ModelChanged(ConfigurationError):
    """A model answers that is not the one that an evaluation has samples of."""


class ServedModels:
    """Compares what the backends of a pool name with what a definition notes. `save` is called with a changed one."""

    def __init__(self, client: AsyncClient, directory: Path, save: Callable[[Definition], None]) -> None:
        self._client, self._directory, self._save = client, directory, save

    async def check(self, kept: Definition) -> None:
        """Called before samples are asked for. Raises `ModelChanged` or `ServiceError`."""
        if kept.others:
            raise ModelChanged(f"{self._mixed(kept)}: {self._fix(kept)}")
        told = await self._told(kept)
        if strangers := _strangers(kept, told):
            raise ModelChanged(
                f"{self._directory} was begun with {_list(kept.models)}, and {strangers}: {self._fix(kept)}"
            )
        self._note(kept, told)

    async def watch(self, current: Callable[[], Definition]) -> None:
        """While samples are made: returns never. Raises `ModelChanged`, and notes the stranger, for its samples may be
        among those of the model.
        """
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look(current())

    async def look(self, kept: Definition) -> None:
        """Once. Raises `ModelChanged`; a service that does not answer shows itself elsewhere."""
        try:
            told = await self._served(kept)
        except ServiceError:
            return
        if strangers := _strangers(kept, told):
            others = sorted(set(filter(None, told.values())) - set(kept.models))
            kept = msgspec.structs.replace(kept, others=others)
            self._save(kept)
            raise ModelChanged(f"{self._mixed(kept)} ({strangers}): {self._fix(kept)}")
        self._note(kept, told)

    async def _told(self, kept: Definition) -> Mapping[str, str]:
        """The names, once all backends have told theirs, or after a moment: one that was just added has not yet."""
        told = await self._served(kept)
        for _ in range(TRIES if kept.models else 0):
            if told and all(told.values()):
                break
            await asyncio.sleep(TRY_S)
            told = await self._served(kept)
        return told

    async def _served(self, kept: Definition) -> Mapping[str, str]:
        """The model that each backend of the pool names, by its address; an empty text where it names none."""
        try:
            backends = (await self._client.policy(kept.pool)).backends
        except ServiceError as error:
            if error.status == NOT_THERE:
                return {}
            raise
        return {each.address: each.served or "" for each in backends}

    def _note(self, kept: Definition, told: Mapping[str, str]) -> None:
        if not kept.models and (names := sorted(set(filter(None, told.values())))):
            self._save(msgspec.structs.replace(kept, models=names))

    def _mixed(self, kept: Definition) -> str:
        return f"{_list(kept.others)} answered, too, while {self._directory} was made of {_list(kept.models)}"

    def _fix(self, kept: Definition) -> str:
        again = "" if kept.others else f", or have the pool {kept.pool!r} serve that again"
        return f"evaluate it under another --out{again}"


def _strangers(kept: Definition, told: Mapping[str, str]) -> str:
    """Backends that name another model than those that are noted, in words; empty where none does, or none is noted."""
    others = {address: name for address, name in told.items() if name and name not in kept.models}
    return ", ".join(f"{address} serves {name}" for address, name in others.items()) if kept.models else ""


def _list(names: Sequence[str]) -> str:
    return " and ".join(names)
