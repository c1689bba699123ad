"""The policy versions that a pool was said to serve, and how stale tokens of an older one are.

A trainer announces integers below 2^63. Backends tell text: one of at most 19 decimal digits is a policy version,
anything else (`default`, `step-7`) is a label that has no order. Every comparison is between integers; what cannot be
one is never guessed.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

_NUMBER: Final = re.compile("[0-9]{1,19}")


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's last announcement. `weights`: a directory that backends load from; empty: it moves them itself."""

    version: int | None = None
    mode: str = "keep"
    weights: str = ""
    history: Sequence[tuple[int, int]] = ()  # (Redis's ms, version), oldest first
    id: str = ""

    @property
    def floor(self) -> int | None:
        """The oldest version that a turn may start on; None while any will do."""
        return None if self.mode == "keep" else self.version

    def lags(self, told: str | None) -> bool:
        """True if a backend that tells this version lacks the weights. A label counts only where we load them."""
        if told is None or self.version is None:
            return False
        found = number(told)
        return bool(self.weights) if found is None else found < self.version

    def version_at(self, at_ms: int) -> int | None:
        """The version announced last before a moment; the oldest one remembered, if that lies behind it."""
        before = [version for said_ms, version in self.history if said_ms <= at_ms]
        return before[-1] if before else self.history[0][1] if self.history else None


class BackendProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of one backend with the announced weights. `step`: what was done last, `done` or `failed`."""

    step: str = ""
    tries: int = 0
    at_ms: int = 0
    error: str = ""


class BackendPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One backend's part of a policy update. `serves` is the version that it tells, null where it does not; `served`
    the model that it names, and where that was loaded from.
    """

    address: str
    serves: str | None
    step: str | None
    tries: int = 0
    error: str | None = None
    served: str | None = None


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The version that a pool is said to serve (null before the first one), and what its backends say.

    `step` is what was done last to a backend where the service loads the weights: `done` at the end, or `failed`.
    """

    pool: str
    version: int | None
    mode: str
    weights: str | None
    backends: Sequence[BackendPolicy]


def number(version: str | None) -> int | None:
    """The integer behind a version that a backend tells, if it is one. More digits than a policy version has: none."""
    return int(version) if version is not None and _NUMBER.fullmatch(version) else None


def staleness(announced: int | None, sampled: int | None) -> int:
    """Number of versions that tokens are behind; 0 where either is unknown, or after a step back to older weights."""
    return 0 if announced is None or sampled is None else max(0, announced - sampled)


def adapter_name(adapter: str, version: str | None) -> str:
    """The name under which a backend serves a version of a LoRA adapter; without one, the adapter's own."""
    return adapter if version is None else f"{adapter}@{version}"


def adapter_versions(adapter: str, served: Sequence[str]) -> list[int]:
    """The versions of an adapter among the names that a backend serves, oldest first."""
    found = (each.removeprefix(f"{adapter}@") for each in served if each.startswith(f"{adapter}@"))
    return sorted(version for each in found if (version := number(each)) is not None)
