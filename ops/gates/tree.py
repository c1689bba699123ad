"""What the gates look at: the sources of the packages, parsed once, and the pages of the documentation."""

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

PACKAGES: Final = ("prorl_mq", "workers", "api", "sandbox", "slurm")


class Offence(NamedTuple):
    """One thing that a gate counts. `file` is relative to the repository."""

    file: str
    line: int
    what: str


class Module:
    """A source file of a package, parsed when a gate asks for its tree."""

    def __init__(self, root: Path, path: Path) -> None:
        self.file = path.relative_to(root).as_posix()
        self.package = self.file.split("/")[0]
        parts = path.relative_to(root).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.text = path.read_text()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text, self.file)))

    @cached_property
    def docstrings(self) -> list[tuple[int, str]]:
        """Each with the line at which it starts."""
        found = []
        for node in self.nodes:
            match node:
                case (
                    ast.Module(body=[ast.Expr(value=ast.Constant(value=str(text))) as first, *_])
                    | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str(text))) as first, *_])
                    | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str(text))) as first, *_])
                    | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant(value=str(text))) as first, *_])
                ):
                    found.append((first.lineno, text))
        return found

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """The dotted names that it imports: of `from a import b` both `a` and `a.b`."""
        found = [(n.lineno, alias.name) for n in self.nodes if isinstance(n, ast.Import) for alias in n.names]
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found += [(node.lineno, node.module), *((node.lineno, f"{node.module}.{a.name}") for a in node.names)]
        return found

    @cached_property
    def defines(self) -> set[str]:
        """Names at the top of the module and one level below its classes, also what it imports."""
        found = {name.rpartition(".")[2] for _, name in self.imports}
        for node in self.nodes:
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.add(node.name)
                case ast.Name(ctx=ast.Store()):
                    found.add(node.id)
        return found


class Tree:
    """What the gates look at below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self.modules = [Module(root, path) for path in files]
        self.by_name = {module.name: module for module in self.modules}
        declared = root / "pyproject.toml"
        self.declared = declared.read_text() if declared.is_file() else ""
        self.pages = [path for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if path.is_file()]

    def texts(self) -> Iterator[tuple[str, str]]:
        """Everything that a reader reads: sources in any language, and pages."""
        yield from ((module.file, module.text) for module in self.modules)
        others = [
            p
            for package in PACKAGES
            for p in sorted((self.root / package).rglob("*"))
            if p.suffix in {".lua", ".js", ".html"}
        ]
        for path in (*others, *self.pages):
            yield path.relative_to(self.root).as_posix(), path.read_text()

    def resolves(self, dotted: str) -> bool:
        """A module, a name in the longest prefix that is one, or a group of entry points."""
        if f'entry-points."{dotted}"' in self.declared:
            return True
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            if module := self.by_name.get(".".join(parts[:cut])):
                return all(part in module.defines for part in parts[cut:][:2])
        return False


def line_of(text: str, at: int) -> int:
    """The number of the line that holds the character at `at`."""
    return text.count("\n", 0, at) + 1
