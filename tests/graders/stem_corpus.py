"""Short answers of science: options, numbers, quantities, formulas and words; legal forms and wrong neighbours."""

import random
from collections.abc import Iterator

from tests.graders.math_corpus import CONSTANTS
from tests.graders.measure import Case

RIGHT = {
    "B": ["B", "(B)", "b", "[B]", "B.", r"\text{B}", r"\text{(B)}", r"\text{Option B}", "Option (B)", r"\mathbf{B}",
    "**B**", "The answer is B",
    r"\textsf{B}", r"\texttt{(B)}", r"\underline{B}", r"\bf B", r"{\rm B}", r"\textrm{B.}",
    "choice b", r"\textbf{(B)}."],
    "A and C": ["A, C", "C, A", "(A), (C)", "A & C", "A and C"],
    "5 mW": ["0.005 W", r"5\,\text{mW}", r"5\ \mathrm{mW}", "5e-3 W", r"5 \times 10^{-3} W", "5000 µW", "5 milliwatts"],
    "9.8 m/s^2": [r"9.8\ \text{m/s}^2", r"9.8 m s^{-2}", "9.80 m/s²", r"9.8\,\mathrm{m\,s^{-2}}", "980 cm/s^2"],
    "100000": ["10^5", "10⁵", "1e5", "100,000", r"1\times10^{5}", r"100\,000", "100000."],
    "120": ["5!", "120.", "+120"],
    "0.5": ["1/2", r"\frac{1}{2}", ".5", "50%", "½"],
    "CO_2": ["CO_2", "CO2", r"\mathrm{CO_2}", r"\text{CO}_2", r"\ce{CO2}", "CO₂"],
    "Co": ["Co", r"\text{Co}", r"\mathrm{Co}"],
    "mitochondria": ["Mitochondria", "mitochondria.", "MITOCHONDRIA", r"\text{mitochondria}", "**mitochondria**"],
    "Yes": ["yes", "YES", "Yes.", r"\text{yes}"],
    "DNA polymerase": ["dna polymerase", "DNA Polymerase", r"\text{DNA polymerase}"],
}  # fmt: skip
WRONG = {
    "B": ["A", "C", "A, B, C, D", "B) or perhaps A)", "A or B", "any", "", "(C)", "BB", "AB", "B, C",
    r"\text{Option A}", "not B", "8"],
    "A and C": ["A", "C", "A, B, C", "A, B"],
    "5": [".5", "5!", "-5", "5^5", "55", "5, 6", "1/5", "5 or 6", r"5 \times 10^5", "05.1"],
    "105": ["10⁵", "10^5", "1.05", "-105"],
    "5 mW": ["5 MW", "5 mA", "5 W", "5 kW", "-5 mW", "50 mW", r"5\,\text{MW}", "5 m"],
    "5 Ms": ["5 ms", "5 m", "5 µs"],
    "CO": ["Co", "CO_2", r"\text{Co}", "C"],
    "Co": ["CO", r"\mathrm{CO}", "C"],
    "MW": ["mW", "kW", "Mw_2O"],
    "300 K": ["30 K", "300 kg", "300 s", "-300 K"],
}  # fmt: skip
UNITS = ("W", "J", "m", "g", "s", "A", "V", "Pa", "N", "Hz", "L")
PREFIXES = {"n": -9, "m": -3, "k": 3, "M": 6, "G": 9}
WORDS = (
    "photosynthesis",
    "gravity",
    "Newton's third law",
    "osmosis",
    "igneous rock",
    "left ventricle",
    "insulin",
    "covalent bond",
)
FORMULAS = ("H_2O", "NaCl", "CO_2", "H_2SO_4", "Fe_2O_3", "C_6H_{12}O_6", "NH_3", "CaCO_3", "KMnO_4", "HNO_3")


def by_hand() -> Iterator[Case]:
    for right, corpus in ((True, RIGHT), (False, WRONG)):
        for gold, answers in corpus.items():
            yield from (Case(gold, rf"\boxed{{{said}}}", right=right) for said in answers)
    yield from (Case(gold, gold, right=False) for gold in RIGHT)  # without a box
    for gold in ("B", "A and C", "105", "5 mW", "Co"):
        yield from (Case(gold, rf"\boxed{{{constant}}}", right=False) for constant in CONSTANTS)


def generated(seed: int, count: int) -> Iterator[Case]:
    draw = random.Random(seed)
    made = 0
    while made < count:
        cases = [*draw.choice((_option, _quantity, _number, _formula, _word))(draw)]
        made += len(cases)
        yield from cases


def _cases(gold: str, right: list[str], wrong: list[str]) -> Iterator[Case]:
    yield from (Case(gold, rf"So \boxed{{{said}}}.", right=True) for said in right)
    yield from (Case(gold, rf"So \boxed{{{said}}}.", right=False) for said in wrong)


def _option(draw: random.Random) -> Iterator[Case]:
    right, other = draw.sample("ABCDEFGHIJ", 2)
    forms = (
        "{}",
        "({})",
        "{}.",
        r"\text{{{}}}",
        r"\text{{({})}}",
        "Option {}",
        r"\mathrm{{{}}}",
        "[{}]",
        r"\text{{Choice }}{}",
        "answer: {}",
    )
    wrong = [
        *(form.format(other) for form in forms),
        f"{right} or {other}",
        f"{right}, {other}",
        f"{right}) if {other})",
    ]
    yield from _cases(right, [form.format(letter) for form in forms for letter in (right, right.lower())], wrong)


def _quantity(draw: random.Random) -> Iterator[Case]:
    unit, n = draw.choice(UNITS), draw.randint(2, 900)
    prefix, other = draw.sample(sorted(PREFIXES), 2)
    powers = PREFIXES[prefix]
    right = [
        f"{n} {prefix}{unit}", rf"{n}\,\text{{{prefix}{unit}}}", rf"{n}\ \mathrm{{{prefix}{unit}}}",
        f"{n}{prefix}{unit}", f"{n}.0 {prefix}{unit}",
        rf"{n} \times 10^{{{powers}}} {unit}", f"{n}e{powers} {unit}", rf"\text{{{n} {prefix}{unit}}}",
    ]  # fmt: skip
    wrong = [
        f"{n} {other}{unit}",
        f"-{n} {prefix}{unit}",
        f"{n * 10} {prefix}{unit}",
        f"{n} {prefix}{'mol' if unit != 'W' else 'K'}",
        f"{2 * n} {prefix}{unit}",
    ]
    if prefix in {"m", "M"}:
        wrong.append(f"{n} {prefix.swapcase()}{unit}")
    yield from _cases(f"{n} {prefix}{unit}", right, wrong)


def _number(draw: random.Random) -> Iterator[Case]:
    n = draw.randint(2, 10**6)
    right = [
        f"{n}",
        f"{n:,}",
        f"{n}.",
        f"{n}.0",
        f"{n:,}".replace(",", r"\,"),
        f"{2 * n}/2",
        rf"\frac{{{3 * n}}}{{3}}",
        f"{n}e0",
        rf"${n}$",
    ]
    wrong = [
        f"{n + 1}",
        f"-{n}",
        f".{n}",
        f"{n}0",
        f"{n}!" if n < 90 else f"{n}1",
        f"1/{n}",
        rf"{n} \times 10^{{2}}",
        f"{n}⁵",
    ]
    yield from _cases(str(n), right, wrong)


def _formula(draw: random.Random) -> Iterator[Case]:
    gold, other = draw.sample(FORMULAS, 2)
    bare = gold.replace("_", "").replace("{", "").replace("}", "")
    yield from _cases(
        gold, [gold, bare, rf"\mathrm{{{bare}}}", rf"\text{{{bare}}}"], [other, f"{gold}O_2", gold[:-1] + "9"]
    )


def _word(draw: random.Random) -> Iterator[Case]:
    gold = draw.choice(WORDS)
    yield from _cases(gold, [gold, gold.capitalize(), gold.upper(), f"{gold}.", rf"\text{{{gold}}}", f" {gold} "], [])
