"""Tokens that open the service, read again when their file changes."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from api.config import ApiSettings
from api.tokens import Caller, TokensFile, identify, load_tenants
from prorl_mq.errors import ConfigurationError, RedisUnavailable
from prorl_mq.schema.ids import TenantId
from prorl_mq.store.server import notices
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store

LOOK_S: Final = 1.0  # between two looks; a change counts once two of them found the same file
log = logging.getLogger("prorl_mq.api")
Stamp = tuple[int, ...]


class Callers:
    """Tokens of tenants, and the backends that each may add. A file that is wrong changes nothing, and is reported."""

    def __init__(self, settings: ApiSettings) -> None:
        self.tokens: Mapping[str, bytes] = settings.tokens
        self.readers: Mapping[str, bytes] = settings.readers
        self.backends = settings.backends
        self.fault = ""
        self.waiting: dict[asyncio.Future[None], TenantId] = {}  # each ends if its tenant has other tokens
        self._path = settings.tokens_file
        self._compat = settings.compat is not None
        self._stamp: Stamp | None = None  # of the file that was read last; None: of none yet
        self._seen: Stamp | None = None

    def identify(self, authorization: str | None) -> Caller:
        """Raises `Problem` (401)."""
        return identify(authorization, self.tokens, self.readers)

    async def follow(self, store: Store, changed: Callable[[], None]) -> None:
        """Looks at the file until cancelled; `changed` is called when other tokens or backends hold."""
        if self._path is None:
            return
        while True:
            before = self.tokens, self.readers
            if await asyncio.to_thread(self._look, self._path):
                changed()
                self._end(*before)
            if self.fault:
                await _report(store, self.fault)
            await asyncio.sleep(LOOK_S)

    def _end(self, tokens: Mapping[str, bytes], readers: Mapping[str, bytes]) -> None:
        """Of a tenant whose tokens are others now, what waits: a caller that still has one comes again."""
        for waiting, tenant in tuple(self.waiting.items()):
            if (tokens.get(tenant), readers.get(tenant)) != (self.tokens.get(tenant), self.readers.get(tenant)):
                waiting.cancel()

    def _look(self, path: Path) -> bool:
        """True if something else holds now. A file is read once it is the same as at the look before: an editor that
        writes in place leaves a part of it for a moment, which may be a whole file of fewer tenants.
        """
        stamp = _stamp(path)
        settled, self._seen = stamp == self._seen, stamp
        if not settled or stamp == self._stamp:
            return False
        try:
            found = load_tenants(path)
        except ConfigurationError as error:
            self._stamp = stamp
            self._keep(str(error))
            return False
        if _stamp(path) != stamp:
            return False
        self._stamp = stamp
        return self._take(found, path)

    def _keep(self, fault: str) -> None:
        self.fault = f"{fault}; the tokens that were read before still hold"
        log.error("%s", self.fault)

    def _take(self, found: TokensFile, path: Path) -> bool:
        self.fault, before = "", (self.tokens, self.readers, self.backends)
        self.tokens, self.backends = found.tokens, found.backends
        self.readers = {} if self._compat else found.readers
        changed = before != (self.tokens, self.readers, self.backends)
        if changed:
            log.info("the tokens file %s has changed: %d tenants have access now", path, len(self.tokens))
        return changed


def _stamp(path: Path) -> Stamp:
    """Empty for a file that cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


async def _report(store: Store, fault: str) -> None:
    try:
        await notices.say(store, notices.TOKENS, f"{store.name}: {fault}")
    except (RedisUnavailable, RedisError, OSError):  # the log has it, and it is said again
        log.debug("the fault of the tokens file was not stored", exc_info=True)
