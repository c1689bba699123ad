"""Texts of single tokens, read off a tokenizer's own file, for people to read: a token may be a part of a character."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prorl_mq.errors import ConfigurationError

FILE: Final = "tokenizer.json"
META: Final = "▁"  # SentencePiece's blank


class Vocabulary:
    """The pieces of a tokenizer by id."""

    def __init__(self, pieces: Mapping[int, str], added: Mapping[int, str], *, by_bytes: bool) -> None:
        self._pieces = pieces
        self._added = added
        self._by_bytes = by_bytes

    def texts(self, ids: Sequence[int]) -> list[str]:
        """A text for each id; a part of a character is shown as �, an unknown id as its number in angle brackets."""
        return [self._bytes(token).decode(errors="replace") for token in ids]

    def text(self, ids: Sequence[int]) -> str:
        """The text of all of them, with characters that several tokens make up."""
        return b"".join(map(self._bytes, ids)).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode(errors="replace")
        piece = self._pieces.get(token)
        if piece is None:
            return f"<{token}>".encode()
        if not self._by_bytes:
            return piece.replace(META, " ").encode(errors="replace")
        known = _bytes()
        return b"".join(known.get(letter) or letter.encode(errors="replace") for letter in piece)


def read(directory: Path) -> Vocabulary:
    """Raises `ConfigurationError`."""
    path = directory / FILE
    try:
        found = json.loads(path.read_bytes())
        return Vocabulary(_pieces(found["model"]["vocab"]), _added(found), by_bytes=_by_bytes(found))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{path} has no vocabulary that is known: {type(error).__name__}: {error}") from None


def _pieces(vocabulary: Any) -> dict[int, str]:
    """BPE and WordPiece map pieces to ids; Unigram lists them with their scores."""
    if isinstance(vocabulary, dict):
        return {number: piece for piece, number in vocabulary.items()}
    return {number: piece for number, (piece, _) in enumerate(vocabulary)}


def _added(found: Mapping[str, Any]) -> dict[int, str]:
    return {each["id"]: each["content"] for each in found.get("added_tokens") or ()}


def _by_bytes(found: Mapping[str, Any]) -> bool:
    """True where each letter of a piece stands for a byte, as in GPT-2."""
    decoder = found.get("decoder") or {}
    return "ByteLevel" in {each["type"] for each in decoder.get("decoders", [decoder]) if "type" in each}


@functools.cache
def _bytes() -> dict[str, bytes]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for what comes from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return {chr(byte if byte in printable else next(others)): bytes([byte]) for byte in range(256)}
