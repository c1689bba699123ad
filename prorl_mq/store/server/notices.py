"""Faults that a process reports to the operator: `status` and `doctor` show them until they are corrected."""

from typing import Final

from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

TOKENS: Final = "tokens"  # the file of the API's bearer tokens
KEPT_MS: Final = 15_000  # longer than a reporter's pause


async def say(store: Store, subject: str, fault: str) -> None:
    """Shows a fault for a moment; a process repeats it while it has it."""
    await store.write("SET", store.keys.duty(subject), fault, "PX", KEPT_MS, repeat=Repeat.SAME)


async def said(store: Store, subject: str) -> str:
    """The fault, empty if no process has it."""
    found: bytes | None = await store.read("GET", store.keys.duty(subject))
    return (found or b"").decode(errors="replace")
