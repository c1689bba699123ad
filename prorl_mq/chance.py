"""The process's source of chance: jitter, and unique names. A simulator puts its own generator here."""

import random
import secrets


def fraction() -> float:
    """Uniform in [0, 1)."""
    return random.random()  # noqa: S311 - jitter


def number(bits: int) -> int:
    """A number of at most so many bits."""
    return random.getrandbits(bits)


def name(size: int) -> str:
    """`size` random bytes in hexadecimal, unlike any other process's."""
    return secrets.token_hex(size)
