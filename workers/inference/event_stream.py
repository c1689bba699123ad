"""Server-sent events, taken out of the bytes of an answer as they come."""

from collections.abc import Callable
from typing import Final

from prorl_mq.process.http_connection import BrokenAnswer

END: Final = b"[DONE]"  # OpenAI's and SGLang's last event, which has no data
_MAX_EVENT_BYTES: Final = 64 << 20


class EventReader:
    """Passes on the data of each event that is complete. Comments, names and ids of events mean nothing here."""

    def __init__(self, event: Callable[[bytes], None]) -> None:
        self._event = event
        self._rest = bytearray()  # of a line that is not over: each piece of it is looked at once

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Raises what the receiver of events raises, and `BrokenAnswer` for an endless event."""
        whole, over, rest = data.rpartition(b"\n")
        lines = bytes(self._rest + whole).split(b"\n") if over else []
        if over:
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > _MAX_EVENT_BYTES:
            raise BrokenAnswer(f"an event exceeds {_MAX_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                content = line[5:].strip()
                if content and content != END:
                    self._event(content)
