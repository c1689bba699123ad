"""The page with its data as files that open from disk, or on any server of files.

A browser loads neither modules nor JSON from disk, so modules become one script, and answers become scripts that hand
themselves over: what is listed at once, what belongs to a job when its page is opened.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from api.ui import page
from api.viewing.answers import FileAnswers
from api.viewing.sources import Source
from prorl_mq.archive.table import ArchiveDamaged
from prorl_mq.errors import ConfigurationError, NotFound
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service.trajectory_pages import CUT, Outline

log = logging.getLogger("prorl_mq.viewing")
# As the page asks (`ui/pages`): groups of a list and of a section, turns of a page and side by side, tokens.
GROUPS: Final = 100
SECTION: Final = 50
TURNS: Final = 10
BESIDE: Final = 5
TOKENS: Final = 256
POLICY: Final = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:; base-uri 'none'; "
    "form-action 'none'"
)
IMPORT: Final = re.compile(r'^import (?:\* as (\w+)|\{([^}]*)\}) from "([^"]+)";\n', re.MULTILINE)
LISTED: Final = re.compile(r"\bexport ?\{([^}]*)\};?(?=\s*(?://[^\n]*\s*)?$)")  # the end of a vendored module
EXPORT: Final = re.compile(r"^export (const|function|async function|class) (\w+)", re.MULTILINE)


def bundle(source: Source, out: Path) -> str:
    """Writes the page with its data; says where. The target appears once it is whole. Raises `ConfigurationError`."""
    if out.exists():
        raise ConfigurationError(f"{out} already exists: remove it, or choose another --bundle")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        jobs, damaged = _write(source, part)
        part.replace(out)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    less = f" without {damaged} group{'s' * (damaged > 1)} that cannot be read" if damaged else ""
    return f"the page with {jobs} trajectories{less} is {out / 'index.html'}: open it, or publish the directory"


def _write(source: Source, part: Path) -> tuple[int, int]:
    (part / "data").mkdir(parents=True)
    (part / "vendor").mkdir()
    for name in ("style.css", "icon.svg", "vendor/uplot.css", "vendor/licences.txt"):
        shutil.copyfile(page.FILES / name, part / name)
    head = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    head += '<meta name="prorl-view" content="bundle">\n'
    text = (page.FILES / "index.html").read_text().replace("</head>", f"{head}</head>")
    scripts = '<script src="data/lists.js" defer></script>\n<script src="app.js" defer></script>'
    text = text.replace('<script type="module" src="app.js"></script>', scripts)
    (part / "index.html").write_text(text)
    (part / "app.js").write_text(script(page.FILES, "app.js"))
    return _data(FileAnswers(source), part / "data")


def _data(answers: FileAnswers, data: Path) -> tuple[int, int]:
    """Numbers of trajectories, and of groups that were left out: a damaged one hides no other."""
    lists, places, damaged = dict[str, Any](), dict[str, str](), 0
    for group in _lists(answers, lists):
        try:
            view = _asked(answers, lists, f"groups/{group}")
        except (ArchiveDamaged, NotFound) as error:
            log.warning("%s; the group is not in the bundle", error)
            damaged += 1
            continue
        for sample in view.samples:
            found = dict[str, Any]()
            _asked(answers, found, f"jobs/{sample.job_id}/timeline")
            if sample.record.trajectory:
                with contextlib.suppress(NotFound):  # an archived group whose trajectory could not be read
                    _of_trajectory(answers, answers.trajectory(sample.job_id), sample.job_id, found)
            places[sample.job_id] = f"data/{len(places)}.js"
            (data / f"{len(places) - 1}.js").write_bytes(_handed("answers", found))
    (data / "lists.js").write_bytes(_handed("answers", lists) + _handed("places", places))
    return len(places), damaged


def _handed(what: str, data: Mapping[str, Any]) -> bytes:
    """A script that hands data over. A JSON text is a text of JavaScript."""
    return b"((window.prorl ??= {}).%s ??= []).push(%s);\n" % (what.encode(), msgspec.json.encode(data))


def _lists(answers: FileAnswers, lists: dict[str, Any]) -> Iterator[str]:
    """Lists of groups as pages ask for them, and the name of every group."""
    for run in _asked(answers, lists, "runs").runs:
        path, batches = f"runs/{run.run_id}/groups", dict[str, None]()
        for found in _pages(answers, lists, path, {"state": "archived"}, GROUPS):
            for group in found.groups:
                batches[group.batch_id] = None
                yield f"{run.run_id}:{group.group_id}"
        _asked(answers, lists, path, {"state": "archived", "limit": SECTION})
        for batch in batches:
            about = {"batch": batch, "state": "archived"}
            _asked(answers, lists, path, about | {"limit": SECTION})
            list(_pages(answers, lists, path, about, GROUPS, after=_next(lists, path, about | {"limit": SECTION})))
        list(_pages(answers, lists, path, {"state": "archived"}, GROUPS,
                    after=_next(lists, path, {"state": "archived", "limit": SECTION})))  # fmt: skip


def _pages(
    answers: FileAnswers,
    lists: dict[str, Any],
    path: str,
    about: Mapping[str, Any],
    limit: int,
    after: str | None = "0",
) -> Iterator[Any]:
    while after is not None:
        query = {**about, "limit": limit} if after == "0" else {**about, "limit": limit, "after": after}
        found = _asked(answers, lists, path, query)
        if after == "0":
            lists[_key(path, query | {"after": "0"})] = found
        yield found
        after = found.next


def _next(lists: Mapping[str, Any], path: str, query: Mapping[str, Any]) -> str | None:
    after: str | None = lists[_key(path, query)].next
    return after


def _of_trajectory(answers: FileAnswers, trajectory: Trajectory, job: str, found: dict[str, Any]) -> None:
    """FileAnswers about one trajectory: its turns by pages, whole texts where they are cut, and tokens by ranges."""
    path, count = f"jobs/{job}/turns", len(trajectory.turns)
    for start in range(0, max(1, count), BESIDE):
        _asked(answers, found, path, {"after": start, "limit": BESIDE})
    for start in range(0, max(1, count), TURNS):
        outline: Outline = _asked(answers, found, path, {"after": start, "limit": TURNS})
        for at, turn in enumerate(outline.turns):
            texts = [turn.text, *filter(None, (turn.reply, turn.content, turn.reasoning))]
            texts += (each.content for each in turn.following)
            texts += (part for call in turn.tool_calls for part in (call.arguments, call.result))
            if any(len(each.text) < each.characters for each in texts):
                _asked(answers, found, path, {"after": turn.number, "full": "true", "limit": 1})
            following = outline.turns[at + 1] if at + 1 < len(outline.turns) else None
            end = turn.end
            if following is not None and following.segment == turn.segment:
                end = following.start
            elif outline.next is None:
                end = len(trajectory.segments[turn.segment].response_ids)
            _ranges(answers, found, job, turn.segment, "response", turn.start, end)
    prompts = [each.prompt_text for each in trajectory.segments]
    prompts += (one.content for each in trajectory.segments for one in each.messages)
    if any(len(text) > CUT for text in prompts):
        _asked(answers, found, path, {"full": "true", "limit": 1})
    for number, segment in enumerate(trajectory.segments):
        _ranges(answers, found, job, number, "prompt", 0, len(segment.prompt_ids))


def _ranges(
    answers: FileAnswers, found: dict[str, Any], job: str, segment: int, part: str, start: int, end: int
) -> None:
    for at in range(start, max(end, start + 1), TOKENS):
        limit = max(1, min(TOKENS, end - at))
        query = {"limit": limit, "part": part, "segment": segment, "start": at}
        _asked(answers, found, f"jobs/{job}/tokens", query)
        found[_key(f"jobs/{job}/tokens", query | {"limit": TOKENS})] = found[_key(f"jobs/{job}/tokens", query)]


def _asked(answers: FileAnswers, found: dict[str, Any], path: str, query: Mapping[str, Any] | None = None) -> Any:
    texts = {name: str(value) for name, value in (query or {}).items()}
    made = answers.answer(path.split("/"), texts)
    found[_key(path, texts)] = made
    return made


def _key(path: str, query: Mapping[str, Any]) -> str:
    """A request as the page names it: its query in order."""
    return f"{path}?{urlencode(sorted(query.items()))}" if query else path


def script(folder: Path, name: str) -> str:
    """One script of modules that import each other, each run once, after those that it imports."""
    done = dict[str, str]()
    _take(folder, name, done)
    whole = "\n".join(f"// {each}\nmodules[{each!r}] = (() => {{\n{text}}})();" for each, text in done.items())
    return f'"use strict";\n(() => {{\nconst modules = {{}};\n{whole}\n}})();\n'


def _take(folder: Path, name: str, done: dict[str, str]) -> None:
    if name in done:
        return
    text = (folder / name).read_text()
    imported = {path: (Path(name).parent / path) for _, _, path in IMPORT.findall(text)}
    names = {path: _normal(place) for path, place in imported.items()}
    for each in names.values():
        _take(folder, each, done)

    def constant(found: re.Match[str]) -> str:
        whole, some, path = found.groups()
        return f"const {whole or '{' + some.replace(' as ', ': ') + '}'} = modules[{names[path]!r}];\n"

    text = IMPORT.sub(constant, text)
    if listed := LISTED.search(text):
        pairs = [part.split(" as ") for part in listed[1].split(",")]
        exported = [f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs]
        text = text[: listed.start()]
    else:
        exported = [found[1] for found in EXPORT.findall(text)]
        text = EXPORT.sub(r"\1 \2", text)
    done[name] = f"{text}\nreturn {{ {', '.join(exported)} }};\n"


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)
