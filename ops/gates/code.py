"""Gates of code: sizes, names that are used twice, who may speak to Redis, how many settings there are."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ops.gates.commands import commands, reaches
from ops.gates.tree import Offence, Tree, line_of

MODULE_LINES: Final = 350
FUNCTION_LINES: Final = 60
FOLDER_MODULES: Final = 20
SMALL_LINES: Final = 60
DECLARING: Final = "prorl_mq.settings"
SETTING: Final = re.compile(r"--[a-z][a-z0-9-]*")
VARIABLE: Final = re.compile(r"\bPRORL_[A-Z][A-Z_]*[A-Z]\b")


def long_modules(tree: Tree) -> Iterator[Offence]:
    for module in tree.modules:
        if (lines := module.text.count("\n")) > MODULE_LINES:
            yield Offence(module.file, 1, f"{lines} lines")


def long_functions(tree: Tree) -> Iterator[Offence]:
    for module in tree.modules:
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield Offence(module.file, node.lineno, f"{node.name}: {lines} lines")


def full_folders(tree: Tree) -> Iterator[Offence]:
    folders = Counter(Path(m.file).parent.as_posix() for m in tree.modules if not m.file.endswith("__init__.py"))
    yield from (Offence(folder, 0, f"{count} modules") for folder, count in folders.items() if count > FOLDER_MODULES)


def doubled_classes(tree: Tree) -> Iterator[Offence]:
    """One for each name, at its last definition."""
    places: defaultdict[str, list[Offence]] = defaultdict(list)
    for module in tree.modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and node.col_offset == 0 and not node.name.startswith("_"):
                places[node.name].append(Offence(module.file, node.lineno, node.name))
    for name, found in places.items():
        if len(found) > 1:
            others = ", ".join(each.file for each in found[:-1])
            yield found[-1]._replace(what=f"class {name} is also in {others}")


def redis_outside_store(tree: Tree) -> Iterator[Offence]:
    """One for each line that speaks to Redis."""
    for module in tree.modules:
        if module.name.startswith(("prorl_mq.store", "prorl_mq.dashboard")):
            continue
        found = {line: "imports redis" for line, name in module.imports if name.split(".")[0] == "redis"}
        found |= dict(reaches(module)) | {line: command for line, command, _ in commands(module)}
        yield from (Offence(module.file, line, what) for line, what in sorted(found.items()))


def testing_in_production(tree: Tree) -> Iterator[Offence]:
    for module in tree.modules:
        if not module.name.startswith("prorl_mq.testing"):
            lines = {line for line, name in module.imports if f"{name}.".startswith("prorl_mq.testing.")}
            yield from (Offence(module.file, line, "imports prorl_mq.testing") for line in sorted(lines))


def settings(tree: Tree) -> Iterator[Offence]:
    """A flag counts once for each declaration, a variable once in all.

    A declaration that another one is replaced from is the same one. The flags of `prorl-mq run` and `tenant`, and
    `--init`, `--run` and `--eval` of `prorl-mq up`, count since every flag is declared; no text named them before.
    """
    seen = set()
    for module in tree.modules:
        for node in module.nodes:
            match node:
                case ast.Call(func=ast.Name(id="Setting"), args=[ast.Constant(str(flag)), *_]):
                    if SETTING.fullmatch(flag):
                        yield Offence(module.file, node.lineno, flag)
        for found in VARIABLE.finditer(module.text):
            if found[0] not in seen:
                seen.add(found[0])
                yield Offence(module.file, line_of(module.text, found.start()), found[0])


def undeclared_flags(tree: Tree) -> Iterator[Offence]:
    """Uses of argparse's method outside the module that makes command lines from declarations."""
    for module in tree.modules:
        if module.name != DECLARING:
            nodes = (node for node in module.nodes if isinstance(node, ast.Attribute))
            yield from (Offence(module.file, node.lineno, node.attr) for node in nodes if node.attr == "add_argument")


def single_importers(tree: Tree) -> list[str]:
    """Small modules (60 lines at most) that one other module imports, which might be one with it."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in tree.modules:
        for _, name in module.imports:
            if name in tree.by_name and name != module.name:
                importers[name].add(module.name)
    lone = (tree.by_name[name] for name, by in importers.items() if len(by) == 1)
    return sorted(
        module.name for module in lone if module.text.count("\n") <= SMALL_LINES and "__init__" not in module.file
    )
