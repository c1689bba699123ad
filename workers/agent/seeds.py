"""The seed of each turn, made from the batch's."""

import hashlib


def turn_seed(seed: int | None, sample: str, turn: int) -> int | None:
    """The seed of one turn of one sample: repeatable, and unrelated to that of any other."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}:{turn}:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) & 0x7FFFFFFF
