"""The task families that this process can run, found by entry point."""

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from prorl_mq.errors import ConfigurationError
from prorl_mq.extras import advice
from prorl_mq.schema.task_schema import Schema, nearest
from workers.handler import Handler

GROUP = "prorl_mq.handlers"
log = logging.getLogger("workers.stages.registry")


class Registry:
    """Handlers by data source."""

    def __init__(self, handlers: Iterable[Handler]) -> None:
        self.by_source: dict[str, Handler] = {}
        for handler in handlers:
            for source in handler.data_sources:
                if source in self.by_source:
                    other = type(self.by_source[source]).__name__
                    raise ConfigurationError(
                        f"data source {source!r} has two handlers, {other} and {type(handler).__name__}: "
                        "uninstall one, or choose with --handlers"
                    )
                self.by_source[source] = handler

    def __getitem__(self, source: str) -> Handler:
        try:
            return self.by_source[source]
        except KeyError:
            hint = nearest(source, self.by_source)
            raise LookupError(f"this worker has no handler for the data source {source!r}: {hint}") from None

    async def aclose(self) -> None:
        """Ends what handlers hold for the life of the process; `aclose` is optional for them."""
        for handler in {id(handler): handler for handler in self.by_source.values()}.values():
            close = getattr(handler, "aclose", None)
            if close is not None:
                await close()

    @property
    def with_sandbox(self) -> frozenset[str]:
        """The data sources whose tasks may need a sandbox."""
        return frozenset(source for source, handler in self.by_source.items() if handler.needs_sandbox)

    @property
    def needing_tools(self) -> list[str]:
        """The data sources whose tasks all offer tools: `needs_tools` is optional for a handler."""
        return sorted(source for source, handler in self.by_source.items() if getattr(handler, "needs_tools", False))

    @property
    def asked(self) -> list[str]:
        """The pools whose models are asked in EVAL: `asks` is optional for a handler. Raises `ConfigurationError`."""
        for handler in self.by_source.values():
            if isinstance(named := getattr(handler, "asks", ()), str):
                raise ConfigurationError(f"{type(handler).__name__}.asks is a text: write asks = ({named!r},)")
        return sorted({pool for handler in self.by_source.values() for pool in getattr(handler, "asks", ())})

    @property
    def schemas(self) -> dict[str, Schema]:
        return {source: handler.schema for source, handler in self.by_source.items()}


def load(names: Iterable[str] = ()) -> Registry:
    """Loads the entry points, all of them or the named ones. One that cannot be imported fails the start.

    A family of ours without its library is left out, and the log says so; one that is named fails the start.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if (other := found.setdefault(point.name, point)) is not point:
            raise ConfigurationError(
                f"two handlers are called {point.name!r}, {other.value} and {point.value}: uninstall one"
            )
    wanted = list(names) or list(found)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        raise ConfigurationError(f"no handler is called {unknown[0]!r}: {nearest(unknown[0], found)}")
    handlers = []
    for name in wanted:
        try:
            handlers.append(_loaded(found[name]))
        except ImportError as error:
            if names or found[name].dist is None or not found[name].value.startswith("workers.handlers."):
                raise ConfigurationError(f"the handler {name!r} cannot be loaded: {advice(error)}") from error
            log.warning("the task family %s is left out: %s; then restart the workers", name, advice(error))
        except Exception as error:  # another package's may raise anything
            raise ConfigurationError(
                f"the handler {name!r} ({found[name].value}) cannot be loaded: {type(error).__name__}: {error}; "
                "correct or uninstall its package"
            ) from error
    return Registry(handlers)


def _loaded(point: EntryPoint) -> Handler:
    """Raises `ImportError` where a module is missing that the family imports only in the processes that it starts."""
    handler: Handler = point.load()()
    missing = [module for module in getattr(handler, "needs", ()) if find_spec(module) is None]
    if missing:
        raise ModuleNotFoundError(f"no module named {missing[0]!r}", name=missing[0])
    return handler
