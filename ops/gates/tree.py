"""Input of the gates: the sources of the packages, parsed once, and everything that a contributor reads."""

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

PACKAGES: Final = ("prorl_mq", "workers", "api", "sandbox", "slurm")
BESIDE: Final = ("tests", "bench", "examples", "ops")  # sources that are held to the same prose
READ: Final = frozenset({".py", ".lua", ".js", ".html", ".css", ".sh", ".md", ".toml"})
MADE: Final = ("bench/out", "tests/golden/")  # by programs, some of them of earlier releases
OF_GATES: Final = {"ops/gates/prose.py", "tests/meta/test_gates.py"}  # which name the phrases


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
    """The repository in one directory. `beside`: modules of tests, benchmarks, examples and programs of developers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self.modules = [Module(root, path) for path in files]
        self.beside = [Module(root, path) for top in BESIDE for path in self._files(top) if path.suffix == ".py"]
        self.by_name = {module.name: module for module in (*self.modules, *self.beside)}
        declared = root / "pyproject.toml"
        self.declared = declared.read_text() if declared.is_file() else ""
        self.pages = sorted(path for path in self._all() if path.suffix == ".md" and path.name != "CHANGELOG.md")

    def texts(self) -> Iterator[tuple[str, str]]:
        """Everything that a reader reads: sources in any language, build files and pages."""
        for path in self._all():
            file = path.relative_to(self.root).as_posix()
            if file not in OF_GATES:
                yield file, path.read_text()

    def _all(self) -> Iterator[Path]:
        yield from (path for path in sorted(self.root.iterdir()) if path.suffix in READ or path.name == "Makefile")
        for top in (*PACKAGES, *BESIDE, "docs"):
            yield from self._files(top)

    def _files(self, top: str) -> Iterator[Path]:
        made = tuple(str(self.root / place) for place in MADE)
        for path in sorted((self.root / top).rglob("*")):
            if path.suffix in READ and path.is_file() and not str(path).startswith(made):
                yield path

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
