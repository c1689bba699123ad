"""A uvicorn server that ends with code 0 where a signal has asked it to."""

import contextlib
import signal
from collections.abc import Iterator

import uvicorn


class DrainingServer(uvicorn.Server):
    """Answers what is under way after SIGTERM or SIGINT."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's own, does not raise the signal again."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
