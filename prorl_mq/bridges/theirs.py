"""A bridge's needs from outside: a trainer's modules, and the service with the rows that it is asked for."""

import importlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from prorl_mq.bridges.tasks import task_of
from prorl_mq.client.rollouts import Rollouts, shared
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Sampling, Task
from prorl_mq.schema.trajectory import RoutedExperts


def imported(module: str, package: str) -> Any:
    """A module of a trainer. `package` is what pip installs, or a name that says in brackets where to have it from.

    Raises `ImportError`, which names the package and what failed in it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # it is there, and lacks something
            raise ImportError(f"{package} is installed, but cannot be imported: {error}", name=error.name) from error
        how = "" if "(" in package else f": pip install {package!r}"
        raise ImportError(f"this bridge needs {package}{how}", name=module) from error


def address() -> tuple[str, str | None]:
    """URL and token of the service, for bridges that a trainer starts without arguments of theirs."""
    url = os.environ.get("PRORL_URL")
    if not url:
        raise ConfigurationError("PRORL_URL is not set: it is the address of the service, http://HOST:8080")
    return url, os.environ.get("PRORL_TOKEN")


def experts_of(told: Mapping[str, int] | None) -> RoutedExperts | None:
    """Layers, top_k and experts, as a trainer's configuration has them. Raises `msgspec.ValidationError`."""
    return None if told is None else msgspec.convert(dict(told), RoutedExperts)


class ServiceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the service, as a bridge's object keeps it: plain data, which travels to other processes.

    Connections belong to the event loop that asks, and are opened there.
    """

    url: str
    run_id: str
    token: str | None = None
    sources: Mapping[str, str] = {}  # data sources of rows, and those of task families
    model: str = ""  # whose rows it trains on, where a task trains several models; empty: the policy's
    routed_experts: RoutedExperts | None = None  # of the trainer's model, where it replays routing

    async def rollouts(self) -> Rollouts:
        return await shared(self.url, self.run_id, token=self.token, model=self.model)

    def sampled(self, sampling: Sampling) -> Sampling:
        """The trainer's sampling, with what the bridge itself was told."""
        return msgspec.structs.replace(sampling, routed_experts=self.routed_experts)

    def task(self, row: Mapping[str, Any]) -> Task:
        return task_of(row, self.sources)


class InRun:
    """In front of a trainer's class, which takes arguments of its own: takes ours out of them."""

    run_id: ClassVar[str]

    def __init__(
        self,
        *args: Any,
        url: str,
        run_id: str | None = None,
        token: str | None = None,
        sources: Mapping[str, str] | None = None,
        model: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._run = ServiceRun(
            url=url, run_id=run_id or self.run_id, token=token, sources=dict(sources or {}), model=model
        )
