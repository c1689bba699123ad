"""Texts of single tokens, by the three kinds of files that tokenizers come in."""

import json
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.converters.vocabulary import read
from prorl_mq.errors import ConfigurationError


def texts(directory: Path, found: Any, *ids: int) -> list[str]:
    (directory / "tokenizer.json").write_text(json.dumps(found))
    return read(directory).texts(ids)


def test_letters_of_a_byte_level_vocabulary_are_bytes(tmp_path: Path) -> None:
    """`é` is two bytes: as one token, and as two of a half each. A letter that stands for no byte stays itself."""
    pieces = {"Ġa": 0, "Ċ": 1, "Ã©": 2, "Ã": 3, "©": 4, "日": 5, "\ud800": 6}
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}
    added = [{"id": 9, "content": "<|im_end|>"}]
    found = {"model": {"type": "BPE", "vocab": pieces}, "decoder": decoder, "added_tokens": added}
    assert texts(tmp_path, found, 0, 1, 2, 3, 4, 5, 6, 9, 77) == [
        " a", "\n", "é", "�", "�", "日", "?", "<|im_end|>", "<77>",
    ]  # fmt: skip
    assert read(tmp_path).text([0, 3, 4, 9]) == " aé<|im_end|>"


def test_a_piece_of_sentencepiece_has_its_blank(tmp_path: Path) -> None:
    listed = [["<unk>", 0.0], ["▁the", -1.5], ["<0xE4>", -2.0]]
    assert texts(tmp_path, {"model": {"vocab": listed}, "decoder": None}, 1, 2) == [" the", "<0xE4>"]


@pytest.mark.parametrize(
    "found",
    ["[]", "{}", "not JSON", '{"model": {"vocab": [1]}}', '{"model": {"vocab": {}}, "decoder": "ByteLevel"}',
     '{"model": {"vocab": {}}, "added_tokens": [{}]}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_tokenizer_is_told_with_its_path(found: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(found)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json has no vocabulary that is known"):
        read(tmp_path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read(tmp_path)
