"""Gates of prose: names that no longer resolve, phrases to write in another way, openings of docstrings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ops.gates.tree import BESIDE, MADE, PACKAGES, Offence, Tree, line_of

PHRASES: Final = {
    r"for ever\b": "forever, without limit",
    r"\banew\b": "again",
    r"\bin (its|his|their|whose) stead\b": "instead",
    r"\b(go|goes|went|going) on\b": "continue, happen",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bsomebody else's\b": "another tenant's, another program's",
    r"\bis the doing of\b": "is caused by",
    r"\b(wind|winds|wound) up\b": "close",
    r"\b(come|comes|came) by\b": "arrive, get",
    r"\bnobody's\b": "of no owner",
    r"\bthe like of\b": "such as",
    r"\bwhat is not\b": "a noun",
}
OPENINGS: Final = ("Who ", "What ", "Whether ", "How ", "Where ", "Whose ")
TOPS: Final = "|".join((*PACKAGES, *BESIDE))
DOTTED: Final = re.compile(rf"(?<![\w/.-])(?:{TOPS})(?:\.[A-Za-z_]\w*)+(?![\w/-])")
PLACE: Final = re.compile(rf"(?:{TOPS}|docs)/[\w./-]*\w/?")
PLACEHOLDER: Final = re.compile(r"NAME|VERSION|MODULE|annotate")  # `annotate` is the verb that CONTRIBUTING adds
LINK: Final = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TICKED: Final = re.compile(r"`([^`\n]+)`")


def dead_names(tree: Tree) -> Iterator[Offence]:
    for module in (*tree.modules, *tree.beside):
        for line, text in module.docstrings:
            yield from _dead(tree, module.file, text, line, tree.root)
    for page in tree.pages:
        text = page.read_text()
        file = page.relative_to(tree.root).as_posix()
        yield from _dead(tree, file, text, 1, page.parent)
        for found in LINK.finditer(text):
            if not (page.parent / found[1]).exists():
                yield Offence(file, line_of(text, found.start()), f"no file {found[1]}")


def _dead(tree: Tree, file: str, text: str, first: int, beside: Path) -> Iterator[Offence]:
    for ticked in TICKED.finditer(text):
        if PLACEHOLDER.search(ticked[1]) or ticked[1].startswith(MADE):
            continue
        line = first + line_of(text, ticked.start()) - 1
        for name in DOTTED.findall(ticked[1]):
            if not tree.resolves(name):
                yield Offence(file, line, f"no {name}")
        if (place := PLACE.fullmatch(ticked[1])) and not (
            (tree.root / place[0]).exists() or (beside / place[0]).exists()
        ):
            yield Offence(file, line, f"no file {place[0]}")


def phrases(tree: Tree) -> Iterator[Offence]:
    patterns = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in PHRASES.items()]
    for file, text in tree.texts():
        for pattern, better in patterns:
            yield from (Offence(file, line_of(text, f.start()), f"{f[0]!r}: {better}") for f in pattern.finditer(text))


def openings(tree: Tree) -> Iterator[Offence]:
    for module in tree.modules:
        for line, text in module.docstrings:
            if text.startswith(OPENINGS):
                yield Offence(module.file, line, text.split("\n")[0][:60])
