"""A hostile message is refused before it is decoded, after a bounded number of its values."""

import math
import struct
from datetime import UTC
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.schema import amount, strict
from prorl_mq.schema.intake import decode_message
from prorl_mq.schema.messages import BatchRequest

MIB = 1 << 20
pack = msgspec.msgpack.encode
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
)


def values(plain: Any) -> int:
    if isinstance(plain, dict):
        return 1 + len(plain) + sum(map(values, plain.values()))
    return 1 + sum(map(values, plain)) if isinstance(plain, list) else 1


def message(batch: bytes) -> bytes:
    return b"\x83" + pack("type") + pack("submit") + pack("reply") + pack("x") + pack("batch") + batch


@pytest.mark.slow
@given(PLAIN)
def test_values_are_counted_as_they_are_decoded(plain: Any) -> None:
    assert amount.check_msgpack(pack(plain)).values == values(plain)


@given(st.binary())
def test_what_is_no_messagepack_is_left_to_the_decoder(data: bytes) -> None:
    try:
        amount.check_msgpack(data)
    except amount.TooMuch:
        return


@pytest.mark.parametrize(
    "batch",
    [b"\xdd" + (40 * MIB).to_bytes(4, "big") + b"\x80" * (40 * MIB),  # empty maps
     b"\xdd" + (40 * MIB).to_bytes(4, "big") + b"\x90" * (40 * MIB),
     b"\xdf" + (20 * MIB).to_bytes(4, "big") + b"\xa0\xc0" * (20 * MIB),  # a map of as many fields
     b"\x91" * (40 * MIB)],  # arrays in arrays
    ids=["maps", "lists", "fields", "nested"],
)  # fmt: skip
def test_a_hostile_message_is_refused_before_it_is_decoded(batch: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgspec.msgpack.decode", None)
    with pytest.raises(strict.Misfit, match=r"more than 3000000 values|deeper than 64 levels"):
        decode_message(message(batch))


def test_values_in_many_small_lists_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amount, "MOST_VALUES", 1_000)
    with pytest.raises(amount.TooMuch):
        amount.check_msgpack(pack([[None] * 9] * 100))
    assert amount.check_msgpack(pack([[None] * 9] * 99)).values == 991


@pytest.mark.parametrize("levels", [64, 65])
def test_the_deepest_nesting(levels: int) -> None:
    data = b"\x91" * (levels - 1) + b"\x90"
    if levels == 64:
        assert amount.check_msgpack(data).values == 64
    else:
        with pytest.raises(amount.TooMuch):
            amount.check_msgpack(data)


def test_a_hostile_body_is_refused_and_the_same_marks_in_a_text_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amount, "MOST_VALUES", 1_000)
    with pytest.raises(strict.Misfit, match="more than 1000 values"):
        strict.decode_json(b"[" + b"{}," * 1_000 + b"{}]", BatchRequest)
    amount.check_json(msgspec.json.encode({"text": '[{,"\\' * 1_000}))
    amount.check_json(b'[,"' + b'\\"' * MIB + b"," * 2_000)  # a text without an end is read once


def like_json(plain: Any) -> bool:
    if isinstance(plain, dict):
        return all(isinstance(name, str) and like_json(value) for name, value in plain.items())
    if isinstance(plain, list):
        return all(map(like_json, plain))
    return isinstance(plain, bool | int | str) or plain is None or (isinstance(plain, float) and math.isfinite(plain))


KEYS = st.text() | st.integers(-(2**63), 2**64 - 1) | st.binary()
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=300)
    | st.datetimes(timezones=st.just(UTC))
    | st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=40)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(KEYS, inner, max_size=20),
)  # fmt: skip


@given(ANY)
def test_heads_tell_whether_json_could_hold_a_message(plain: Any) -> None:
    assert amount.check_msgpack(pack(plain)).plain == like_json(plain)


@given(st.floats(width=32))
def test_a_short_float_is_told_as_a_long_one(value: float) -> None:
    assert amount.check_msgpack(b"\xca" + struct.pack(">f", value)).plain == math.isfinite(value)
