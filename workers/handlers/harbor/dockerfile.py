"""The subset of Dockerfiles that can be built without an engine: one image, its files, its commands.

Read into steps with every variable filled in, except in RUN, whose shell does that. Whatever else a line says is
refused, with its number.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

IGNORED = frozenset({
    "CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME",
})  # fmt: skip
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?\s*")
_VARIABLE = re.compile(r"\\(.)|\$\{(\w+)(?:(:?[-+])((?:\$\{[^}]*\}|[^}])*))?\}|\$(\w+)")
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"])*"|\\\$""")
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?\w")
_USUAL = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
MOST_CHARS = 128 << 10  # of variables in one text: Linux gives a program no longer one
_INSTEAD = "build the image elsewhere and give [environment].docker_image"


class Unbuildable(ValueError):
    """A line that is outside the subset; the message says which and what to do."""


class RunStep(NamedTuple):
    """A command of the shell, with the variables and the directory that it has."""

    command: str
    environment: Mapping[str, str]
    workdir: str


class CopyStep(NamedTuple):
    """Files of the context that go into the image."""

    sources: Sequence[str]
    target: str
    mode: str | None


class Dockerfile(NamedTuple):
    """A file as it was read."""

    image: str
    steps: Sequence[RunStep | CopyStep]
    environment: Mapping[str, str]  # that the image has
    workdir: str | None  # None: it names none


class _Line(NamedTuple):
    number: int
    word: str
    rest: str


def read(text: str) -> Dockerfile:
    """Raises `Unbuildable`."""
    reader = _Reader()
    for line in _lines(text):
        try:
            reader.take(line)
        except ValueError as fault:  # also of quotes and of JSON
            raise Unbuildable(f"Dockerfile line {line.number}: {fault}; {_INSTEAD}") from None
    if reader.image is None:
        raise Unbuildable(f"the Dockerfile has no FROM; {_INSTEAD}")
    return Dockerfile(reader.image, reader.steps, reader.environment, reader.workdir)


def _lines(text: str) -> Iterator[_Line]:
    """Instructions with their continuation lines; comments and empty lines among these are left out."""
    begun, number, directives = "", 0, True
    for at, raw in enumerate(text.split("\n"), 1):
        directive = _DIRECTIVE.match(raw.strip()) if directives else None
        directives = directives and (directive is not None or not raw.strip())
        if directive and directive[1].lower() == "escape" and directive[2] != "\\":
            raise Unbuildable(f"Dockerfile line {at}: another escape character is not supported; {_INSTEAD}")
        if raw.lstrip().startswith("#") or not raw.strip():
            continue
        number = number if begun else at
        if raw.rstrip().endswith("\\"):
            begun += raw.rstrip()[:-1]
            continue
        yield _line(number, begun + raw)
        begun = ""
    if begun.strip():
        yield _line(number, begun)


def _line(number: int, text: str) -> _Line:
    word, _, rest = text.strip().partition(" ")
    return _Line(number, word.upper(), rest.strip())


class _Reader:
    """The state of an image between two lines."""

    def __init__(self) -> None:
        self.image: str | None = None
        self.steps: list[RunStep | CopyStep] = []
        self.environment: dict[str, str] = {}
        self.workdir: str | None = None
        self._arguments: dict[str, str] = {}
        self._before: dict[str, str] = {}  # arguments in front of FROM, which only FROM and a bare ARG see

    def take(self, line: _Line) -> None:
        if line.word in IGNORED:
            return
        takes = {"FROM": self._from, "ARG": self._arg, "ENV": self._env, "WORKDIR": self._workdir,
                 "COPY": self._copy, "ADD": self._copy, "RUN": self._run}.get(line.word)  # fmt: skip
        if takes is None:
            raise Unbuildable(f"{line.word} is not supported")
        if self.image is None and line.word not in {"FROM", "ARG"}:
            raise Unbuildable(f"{line.word} stands before FROM")
        if _HEREDOC.search(line.rest) and line.word in {"COPY", "ADD", "RUN"}:
            raise Unbuildable("here-documents (<<) are not supported")
        takes(line.rest)

    def _from(self, rest: str) -> None:
        if self.image is not None:
            raise Unbuildable("a second FROM: builds of several stages are not supported")
        flags, rest = _flags(rest, {"platform"})
        if flags.get("platform", "linux/amd64") != "linux/amd64":
            raise Unbuildable(f"the platform {flags['platform']} is not supported")
        words = rest.split()
        if not words or words[0].lower() == "scratch":
            raise Unbuildable("FROM must name an image")
        self.image = filled(words[0], self._before)

    def _arg(self, rest: str) -> None:
        for name, value in _pairs(rest, self._known(), bare=True):
            if self.image is None:
                self._before[name] = value or ""
            elif value is not None:
                self._arguments[name] = value
            elif name in self._before:
                self._arguments[name] = self._before[name]

    def _env(self, rest: str) -> None:
        if "=" not in rest.split(None, 1)[0] if rest else True:  # the old form: ENV NAME VALUE
            name, _, value = rest.partition(" ")
            self.environment[name] = filled(value.strip(), self._known())
            return
        self.environment |= {name: value or "" for name, value in _pairs(rest, self._known(), bare=False)}

    def _workdir(self, rest: str) -> None:
        self.workdir = _normal(PurePosixPath(self.workdir or "/", filled(rest.strip("'\""), self._known())))

    def _copy(self, rest: str) -> None:
        flags, rest = _flags(rest, {"chown", "chmod"})
        words = [filled(word, self._known()) for word in _listed(rest) or shlex.split(rest)]
        if len(words) < 2:
            raise Unbuildable("COPY needs a source and a target")
        *sources, target = words
        for source in sources:
            if re.match(r"\w+://|git@", source) or re.search(r"\.(tar(\.\w+)?|tgz|txz|tbz2?)$", source):
                raise Unbuildable(f"{source}: addresses and archives are not supported as sources")
            if ".." in PurePosixPath(source).parts:
                raise Unbuildable(f"{source} leads out of environment/")
        ends = "/" if target.endswith("/") or target in {".", "./"} or len(sources) > 1 else ""
        place = _normal(PurePosixPath(self.workdir or "/", target))
        self.steps.append(CopyStep([source.lstrip("/") or "." for source in sources], place + ends, flags.get("chmod")))

    def _run(self, rest: str) -> None:
        if rest.startswith("--"):
            raise Unbuildable(f"RUN {rest.split(maxsplit=1)[0]} is not supported")
        words = _listed(rest)
        command = rest if words is None else shlex.join(words)
        self.steps.append(RunStep(command, self._known(), self.workdir or "/"))

    def _known(self) -> dict[str, str]:
        if self.image is None:
            return self._before
        return {**_USUAL, **self._arguments, **self.environment}


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with its variables replaced: $NAME, ${NAME}, ${NAME:-other}, ${NAME:+other}. A backslash protects."""

    def value(found: re.Match[str]) -> str:
        escaped, name, operator, other, bare = found.groups()
        if escaped is not None:
            return escaped if escaped == "$" else found[0]
        there = values.get(name or bare)
        if operator and operator.endswith("-"):
            return there or filled(other, values)
        if operator:
            return filled(other, values) if there else ""
        if there is None:
            raise Unbuildable(f"the variable {name or bare} is set nowhere in it; the base image's are not known here")
        return there

    chars = 0

    def bounded(found: re.Match[str]) -> str:
        nonlocal chars
        made = value(found)
        chars += len(made)
        if chars > MOST_CHARS:
            raise Unbuildable(f"the variables of a text come to more than {MOST_CHARS} characters")
        return made

    return _VARIABLE.sub(bounded, text)


def _listed(rest: str) -> list[str] | None:
    """The words of JSON's form. None for anything else, such as a shell's test: `[ -d /srv ] || mkdir /srv`."""
    try:
        found = json.loads(rest) if rest.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and found and all(isinstance(each, str) for each in found) else None


def _flags(rest: str, known: set[str]) -> tuple[dict[str, str], str]:
    flags: dict[str, str] = {}
    while found := _FLAG.match(rest):
        if found[1] not in known:
            raise Unbuildable(f"--{found[1]} is not supported")
        flags[found[1]] = found[2] or ""
        rest = rest[found.end() :]
    return flags, rest


def _pairs(rest: str, known: Mapping[str, str], *, bare: bool) -> Iterator[tuple[str, str | None]]:
    try:
        words = shlex.split(_QUOTED.sub(_protected, rest))
    except ValueError as error:
        raise Unbuildable(f"quotes do not match: {error}") from None
    for word in words:
        name, equals, value = filled(word, known).partition("=")
        if not equals and not bare:
            raise Unbuildable(f"{word!r} is not NAME=VALUE")
        yield name, value if equals else None


def _protected(quoted: re.Match[str]) -> str:
    """A quoted text whose dollar signs outlast the splitting into words, where they are no variables."""
    text = quoted[0]
    if text.startswith("'"):
        return text.replace("$", "\\$")
    return text if text.startswith('"') else "\\" + text


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts[1:]:
        if part == "..":
            parts[-1:] = []
        elif part != ".":
            parts.append(part)
    return "/" + "/".join(parts)
