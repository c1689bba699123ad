"""The name of a payload that lies in a file: its size and its content's digest, never its owner.

A record has it where it would have a key of Redis. The folder that it is looked for in is that of the tenant who asks,
so that naming another tenant's payload gives nothing.
"""

import hashlib
import re
from typing import Final, NamedTuple, Self

DIGEST_BYTES: Final = 32
_TEXT: Final = re.compile(rf"file:(0|[1-9][0-9]{{0,11}}):([0-9a-f]{{{2 * DIGEST_BYTES}}})")
WITHIN: Final = re.compile(_TEXT.pattern.encode())  # also where a longer text follows: what is found is kept


class PayloadFile(NamedTuple):
    """A payload in a file. As a text: `file:BYTES:DIGEST`, the digest being BLAKE2b's in hexadecimal digits."""

    size: int
    digest: str

    def __str__(self) -> str:
        return f"file:{self.size}:{self.digest}"

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(len(data), hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest())


def named_file(text: str) -> PayloadFile | None:
    """The file that a text names; None for any other text, such as a key of Redis."""
    found = _TEXT.fullmatch(text)
    return PayloadFile(int(found[1]), found[2]) if found else None
