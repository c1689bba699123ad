"""Texts that no scorer and no game should fall over: drawn from a seed, and some that are always there."""

import random
from collections.abc import Iterator

FIXED = (
    "", " ", "\n", "0", "nan", "inf", "-inf", "[]", "[[]]", "{}", "()", "True", "None", "null", '""', "\x00",
    "\ufffd", "[nan]",
    "[-1]", "[99999999999999999999]", "[a]", "[0 0 0 0]", "[1e999]", "[\u0663]", "[½]", "[A1]", "[A1 B2 C3]",
    "[up] [down]", "[(0, 0)]",
    "[1,2,3]", "[ ]", "[", "]", "[[1]", "[--]", "[0x10]", "[1 -1]", "[1 1 1 1 1 1 1 1]", "[reveal 99 99]",
    "[guess]", "[swap]",
    r"\boxed{}", r"\boxed{\boxed{", r"\boxed{[}", "<answer></answer>", "<answer>[</answer>", '{"score": 1.0}',
    "a" * 10_000,
    "[" * 5000, "9" * 5000, "\N{FACE WITH TEARS OF JOY}" * 50, "%s%s%n", "${HOME}", "../../etc/passwd", "'; --",
    "\\" * 99,
    "<answer>" * 2000, r"\boxed{1}," * 1600, r"\boxed5" * 2000, "```" + " " * 16_000, "\u200b" * 1000, r"\text{" * 300,
    r"\mathrm{i}" * 200, "5 " + "tenths " * 200, r"\to" * 400, r"\textcolor{red}{" * 100,
)  # fmt: skip
_PIECES = (
    "[", "]", "(", ")", "{", "}", "<", ">", "0", "1", "7", "-1", "10", "3.5", "1e9", "²", "٣", "a", "A", "B2", "up",
    "left", "x", "\\",
    "\\frac", "\\boxed{", "}", " ", ",", ";", ":", "\n", "\t", "'", '"', "|", "^", "_", "=", "+", "*", "/", "%",
    "nan", "None", "\x00",
    "é", "漢", "\u202e", "guess", "move", "submit", "true",
)  # fmt: skip


def texts(seed: int, count: int) -> Iterator[str]:
    """`count` texts: those that are always there, then drawn ones, half of them in brackets as moves are."""
    draw = random.Random(seed)
    for place in range(count):
        if place < len(FIXED):
            yield FIXED[place]
        else:
            said = "".join(draw.choice(_PIECES) + draw.choice(("", " ")) for _ in range(draw.randint(1, 12)))
            yield f"[{said}]" if draw.random() < 0.5 else said
