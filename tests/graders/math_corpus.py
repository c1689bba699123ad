"""Answers to mathematics: forms that mean the accepted answer, and neighbours that do not."""

import random
from collections.abc import Iterator
from fractions import Fraction

from tests.graders.measure import Case

RIGHT = {  # by hand: an accepted answer, and what says the same
    "5": [
        r"\boxed{5.}",
        r"\boxed 5",
        r"\fbox{5}",
        r"\boxed{5;}",
        r"\boxed{５}",
        r"\boxed{+5}",
        r"\boxed{05}",
        r"\boxed{|5|}",
    ],
    "100": [r"\boxed{1e2}", r"\boxed{10^2}", r"\boxed{10²}", r"\boxed{1 \times 10^{2}}", r"\boxed{100.00}"],
    "1000": [
        r"\boxed{1\ 000}",
        r"\boxed{1\,000}",
        r"\boxed{1,000}",
        r"\boxed{1{,}000}",
        r"\boxed{1 000}",
        r"\boxed{1,\!000}",
    ],
    "0.5": [r"\boxed{.5}", r"\boxed{1/2}", r"\boxed{½}", r"\boxed{\frac12}", r"\boxed{50\%}", r"\boxed{1/2=0.5}"],
    r"\frac{3}{2}": [r"\boxed{1\frac{1}{2}}", r"\boxed{1 1/2}", r"\boxed{1½}", r"\boxed{\dfrac{3}{2}}", r"\boxed{1.5}"],
    "x=5": [r"\boxed{5}", r"\boxed{x = 5}", r"\boxed{5=x}"],
    r"\pi": [r"\boxed{π}", r"\boxed{\pi}", r"\boxed{1\pi}"],
    "120": [r"\boxed{5!}", r"\boxed{120\text{ ways}}", r"\boxed{120 ways}", r"\boxed{2 \cdot 60}"],
    "5000000": [r"\boxed{5 million}", r"\boxed{5\text{ million}}", r"\boxed{5 \times 10^6}", r"\boxed{5 x 10^6}"],
    r"28\%": [r"\boxed{28}", r"\boxed{0.28}", r"\boxed{28\%}", r"\boxed{28 \%}", r"\boxed{28\text{ percent}}"],
    r"5\text{ cm}": [r"\boxed{5}", r"\boxed{5 cm}", r"\boxed{5\ \mathrm{cm}}", r"\boxed{0.05\text{ m}}"],
    r"45^\circ": [r"\boxed{45}", r"\boxed{45°}", r"\boxed{45^{\circ}}"],
    "(1, 2)": [r"\boxed{(1,2)}", r"\boxed{\left(1, 2\right)}"],
    r"\{1, 2\}": [r"\boxed{\{2,1\}}", r"\boxed{1} and \boxed{2}", r"\boxed{2, 1}"],
    "x > 1": [r"\boxed{(1, \infty)}", r"\boxed{x>1}", r"\boxed{1 < x}"],
    "(x+1)^2": [r"\boxed{x^2+2x+1}", r"\boxed{(1+x)^2}", r"\boxed{(x+1)(x+1)}"],
    r"2\sqrt{3}": [r"\boxed{\sqrt{12}}", r"\boxed{2\sqrt3}", r"\boxed{12^{1/2}}"],
    "101_2": [r"\boxed{101_2}", r"\boxed{101_{2}}"],
    "8": [
        r"\boxed{\underline{8}}",
        r"\boxed{\color{red}8}",
        r"\boxed{\textcolor{red}{8}}",
        r"\boxed{8\\}",
        r"\boxed{\text{\$}8}",
        "\\boxed{\u200b8}",
        "\\boxed{8\ufeff}",
        r"\boxed{\log_2 256}",
        r"\boxed{\lim_{x \to 8} x}",
        r"\boxed{8\text{ times}}",
        r"\boxed{8\text{ cm squared}}",
        r"\boxed{8\text{ quarters}}",
        r"\boxed{8}" + " " * 20_000,
    ],
    "3+4i": [r"\boxed{4i+3}", r"\boxed{3+4\mathrm{i}}", r"\boxed{3 + 4\text{i}}"],
    "2k": [r"\boxed{2k}", r"\boxed{2 k}", r"\boxed{k + k}"],
    r"\emptyset": [r"\boxed{\varnothing}", r"\boxed{\{\}}"],
    "-7": [r"\boxed{−7}", r"\boxed{–7}", r"\boxed{(-7)}", r"\boxed{-7.0}"],
    "B": [r"\boxed{(B)}", r"\boxed{\text{B}}", r"\boxed{\text{(B)}}", r"\boxed{\mathrm{B}}"],
}
OF_NUMBERS = (
    "squared", "cubed", "factorial", "reciprocal", "tenths", "hundredths", "thirds", "k", "bn", "lakh", "crore",
    "per cent", "basis points",
)  # fmt: skip
WRONG = {
    "12": [r"\boxed{1 2}", r"\boxed{1\ 2}", r"\boxed{3 4}", r"\boxed{12 13}", r"\boxed{12 \bmod 7}", r"\boxed{1_2}"],
    "5": [
        r"\boxed{6=5}",
        r"\boxed{5\%}",
        r"\boxed{3+5=5}",
        r"\boxed{x=6=5}",
        r"\boxed{> 5}",
        r"\boxed{\neq 5}",
        r"\boxed{\ge 5}",
        r"\boxed{\text{not }5}",
        r"\boxed{\text{less than }5}",
        r"\boxed{5\text{ or more}}",
        r"\boxed{5\ldots}",
        r"\boxed{5_8}",
        r"\boxed{5\text{ million}}",
        r"\boxed{5 apples and 6 pears}",
        r"\boxed{5\text{ apples and }6\text{ pears}}",
        r"\boxed{\pm 5}",
        r"\boxed{5x}",
        r"\boxed{5i}",
        r"\boxed{.5}",
        r"\boxed{5!}",
        r"\boxed{1,5}",
        r"\boxed{5, 6}",
        r"5",
        "",
        r"\boxed{}",
        r"\boxed{5 dozen}",
        r"\boxed{at least 5}",
        r"\boxed{\text{about half of }5}",
        r"\boxed{5^5}",
        *(rf"\boxed{{5\text{{ {word}}}}}" for word in OF_NUMBERS),
        *(f"\\boxed{{5 {word}}}" for word in OF_NUMBERS if len(word) > 2),
        *(rf"\boxed{{5\text{{ {words}}}}}" for words in ("or 6", "plus 1", "mod 7", "point 5", "to 6", "divided by 6")),
        *(rf"\boxed{{5\mathrm{{{letter}}}}}" for letter in "iexn"),
        *(rf"\boxed{{6 {sign} 5}}" for sign in (r"\to", r"\Rightarrow", r"\lor", "→")),
        *(rf"\boxed{{{before}5}}" for before in (r"x \to ", r"\neg ", r"\forall ", r"x \mapsto ")),
        r"\boxed{5 \mod 7}",
        r"\boxed{5 \bmod 7}",
    ],
    r"5\text{ cm}": [r"\boxed{5\text{ m}}", r"\boxed{5 km}", r"\boxed{5\text{ kg}}"],
    "105": [r"\boxed{10⁵}", r"\boxed{10^5}", r"\boxed{1 05}"],
    "101_2": [r"\boxed{101_3}", r"\boxed{110_2}"],
    "(0, 1)": [r"\boxed{[0, 1]}", r"\boxed{[0, 1)}", r"\boxed{(1, 0)}", r"\boxed{0, 2}"],
    r"\frac{1}{2}": [
        r"\boxed{\frac{2}{1}}",
        r"\boxed{\frac{0}{0}}",
        r"\boxed{\mathbb{R}}",
        r"\boxed{[0, 1]}",
        r"\boxed{x = x}",
        r"\boxed{1 2}",
        r"\boxed{\frac{1}{2} \text{ or } \frac{1}{3}}",
        r"\boxed{\frac{1}{2}} or \boxed{\frac{1}{3}}",
        r"\boxed{\infty}",
        r"\boxed{__import__('os').system('true') or 1/2}",
        r"\boxed{nan}",
        r"\boxed{\emptyset}",
        r"\boxed{1/4 + 1/4 = ?}",
    ],
    "x > 1": [r"\boxed{x \ge 1}", r"\boxed{x < 1}", r"\boxed{[1, \infty)}", r"\boxed{x > 2}"],
}
CONSTANTS = (
    "0",
    "1",
    "-1",
    "i",
    "x",
    r"\pi",
    r"\infty",
    "nan",
    "True",
    "[]",
    r"\{\}",
    r"\mathbb{R}",
    "?",
    "answer",
    "()",
    "1,2,3",
)


def by_hand() -> Iterator[Case]:
    for gold, texts in RIGHT.items():
        yield from (Case(gold, said, right=True) for said in texts)
    for gold, texts in WRONG.items():
        yield from (Case(gold, said, right=False) for said in texts)
    for gold in ("12", r"\frac{7}{9}", "(3, 4)", "x^2+1"):
        yield from (Case(gold, rf"\boxed{{{constant}}}", right=False) for constant in CONSTANTS)
    yield Case("5", r"\boxed{5\%}", right=True, question="What percent of the sum is it?")


def generated(seed: int, count: int) -> Iterator[Case]:
    """At least `count` cases; half of them right, about."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        cases = [*draw.choice((_whole, _ratio, _pair, _polynomial))(draw)]
        made += len(cases)
        yield from cases


def _cases(gold: str, right: list[str], wrong: list[str]) -> Iterator[Case]:
    yield from (Case(gold, rf"It is \boxed{{{said}}}.", right=True) for said in right)
    yield from (Case(gold, rf"It is \boxed{{{said}}}.", right=False) for said in wrong)


def _whole(draw: random.Random) -> Iterator[Case]:
    n = draw.choice((draw.randint(2, 99), draw.randint(1000, 10**7), -draw.randint(2, 999)))
    right = [
        f"{n}", f"{n}.", f"{n}.0", f"{n:,}", f"{n:,}".replace(",", r"\,"), f"{n:,}".replace(",", r"\ "),
        rf"\text{{{n}}}",
        f"x = {n}", rf"\frac{{{3 * n}}}{{3}}", f"{n - 7} + 7", f"{n}e0", rf"{n} \times 10^{{0}}",
        rf"{n}\text{{ metres}}",
        rf"\left({n}\right)", f"{n - 1}+1={n}", f" {n} ", f"${n}$",
    ]  # fmt: skip
    wrong = [
        f"{n + 1}", f"{-n}", f"{n}0", rf"{n}\%", f"{n}, {n + 1}", rf"{n} \text{{ or }} {n + 1}", f"{n + 1} = {n}",
        f"> {n}",
        rf"\text{{not }} {n}", rf"{n}\ldots", rf"{n}\text{{ million}}",
        f"{str(n)[:-1]} {str(n)[-1]}" if abs(n) > 9 else "7 7",
        f"{n}x", f"{n}^2", f"{n}/2", rf"\sqrt{{{abs(n)}}}", f"{n}_7",
    ]  # fmt: skip
    yield from _cases(str(n), right, wrong)


def _ratio(draw: random.Random) -> Iterator[Case]:
    value = Fraction(draw.randint(1, 60), draw.choice((3, 4, 7, 8, 9, 11, 16, 25)))
    a, b = value.numerator, value.denominator
    if b == 1:
        return
    k = draw.randint(2, 9)
    right = [
        rf"\frac{{{a}}}{{{b}}}",
        rf"\dfrac{{{k * a}}}{{{k * b}}}",
        f"{a}/{b}",
        f"{k * a}/{k * b}",
        rf"\frac {{{a}}} {{{b}}}",
    ]
    if a > b:
        right += [rf"{a // b}\frac{{{a % b}}}{{{b}}}", f"{a // b} {a % b}/{b}"]
    if b in {4, 8, 16, 25}:
        right += [f"{float(value)}", f"{float(value)}00", rf"{float(value * 100)}\%"]
    wrong = [
        rf"\frac{{{b}}}{{{a}}}", f"{a + 1}/{b}", f"{a}/{b + 1}", f"-{a}/{b}", f"{a}", f"{b}", f"{a} {b}",
        f"{round(float(value), 1)}1",
        rf"\frac{{{a}}}{{{b}}}\%", f"{a}/{b}, {b}/{a}", rf"\neq \frac{{{a}}}{{{b}}}",
    ]  # fmt: skip
    yield from _cases(rf"\frac{{{a}}}{{{b}}}", right, [said for said in wrong if a != b])


def _pair(draw: random.Random) -> Iterator[Case]:
    a, b = draw.sample(range(-20, 30), 2)
    right = [f"({a},{b})", f"({a}, {b})", rf"\left({a}, {b}\right)", rf"\left( {a} , {b} \right)", f"({a}.0, {b})"]
    wrong = [
        f"({b}, {a})",
        f"({a}, {b + 1})",
        f"({a})",
        f"({a}, {b}, {b})",
        f"{b}",
        rf"({a}, {b}) \text{{ or }} (0, 99)",
    ]
    yield from _cases(f"({a}, {b})", right, wrong)


def _polynomial(draw: random.Random) -> Iterator[Case]:
    a, b, c = (draw.randint(2, 9) for _ in range(3))
    right = [
        f"{a}x^2+{b}x+{c}",
        f"{c}+{b}x+{a}x^2",
        rf"{a} x^{{2}} + {b} x + {c}",
        f"f(x) = {a}x^2+{b}x+{c}",
        f"x({a}x+{b})+{c}",
    ]
    wrong = [
        f"{a}x^2-{b}x+{c}",
        f"{a}x^2+{b}x",
        f"{b}x^2+{a}x+{c + 1}",
        f"{a}x^3+{b}x+{c}",
        f"{a + b + c}",
        f"{a}x^2+{b}x+{c}+1",
    ]
    yield from _cases(f"{a}x^2+{b}x+{c}", right, wrong)
