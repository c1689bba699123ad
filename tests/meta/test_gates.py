"""Each gate of `make check` finds an offence that is planted, and its number may only fall."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.gates import code
from ops.gates.__main__ import GATES, main, mypy_findings
from ops.gates.tree import Tree

Plant = Callable[..., Path]

LONG_FUNCTION = "def f() -> None:\n" + "    print()\n" * 60
PLANTS: dict[str, dict[str, str]] = {
    "long_modules": {"workers/long.py": "X = 1\n" * 351},
    "long_functions": {"api/long.py": LONG_FUNCTION},
    "full_folders": {f"slurm/m{number}.py": "" for number in range(21)},
    "doubled_classes": {"api/a.py": "class Answer: ...\n", "workers/b.py": "class Answer: ...\n"},
    "redis_outside_store": {"workers/a.py": 'async def f(store) -> None:\n    await store.read("HGET", "k", "f")\n'},
    "testing_in_production": {"api/a.py": "def f() -> None:\n    from prorl_mq.testing import wire\n"},
    "dead_names": {"docs/page.md": "See `prorl_mq.gone.Thing`.\n"},
    "phrases": {"sandbox/a.py": "# This waits for ever.\n"},
    "openings": {"sandbox/a.py": '"""Who asks is told."""\n'},
    "undeclared_flags": {"api/a.py": 'def f(parser) -> None:\n    parser.add_argument("--knob")\n'},
    "settings": {"api/a.py": 'KNOB = Setting("--knob")\n'},
}
CLEAN = {
    "prorl_mq/store/jobs.py": 'import redis\n\n\nclass Jobs:\n    """See `prorl_mq.store.jobs.Jobs`."""\n',
    "api/routes.py": '"""Routes of `docs/page.md`."""\n\nROUTES = (("GET", "/v1/jobs"), ("POST", "/v1/jobs"))\n',
    "docs/page.md": "`prorl_mq/store/jobs.py` keeps `prorl_mq.store.jobs`, as [here](page.md#top).\n",
}


@pytest.fixture
def planted(tmp_path: Path) -> Plant:
    """Writes files below a directory of its own, and gives it."""

    def plant(files: dict[str, str]) -> Path:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return plant


@pytest.mark.parametrize("name", GATES)
def test_a_gate_finds_what_is_planted(name: str, planted: Plant) -> None:
    assert len(list(GATES[name].find(Tree(planted(PLANTS[name]))))) == 1


@pytest.mark.parametrize("name", GATES)
def test_a_gate_finds_nothing_in_clean_files(name: str, planted: Plant) -> None:
    assert not list(GATES[name].find(Tree(planted(CLEAN))))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("docs/a.md", "`prorl_mq/store/gone.py`"),
        ("docs/a.md", "[a page](gone.md)"),
        ("CONTRIBUTING.md", "`tests/support/gone.py`"),
        ("tests/support/a.py", '"""Uses `sandbox.protocol.Gone`."""'),
        ("workers/a.py", '"""Uses `sandbox.protocol.Gone`."""'),
    ],
)
def test_a_name_that_does_not_resolve_is_found(file: str, text: str, planted: Plant) -> None:
    tree = Tree(planted({file: text, "sandbox/protocol.py": "class Sandbox: ...\n"}))
    assert [each.file for each in GATES["dead_names"].find(tree)] == [file]


@pytest.mark.parametrize(
    "file",
    [
        "Makefile",
        "SECURITY.md",
        "api/ui/app.js",
        "bench/report.py",
        "docs/howto/a.md",
        "examples/families/a.py",
        "ops/setup.sh",
        "prorl_mq/store/lua/a.lua",
        "tests/verbs/test_a.py",
    ],
)
def test_phrases_are_found_wherever_people_read(file: str, planted: Plant) -> None:
    tree = Tree(planted({file: "# for ever\n", "bench/out/a.md": "# for ever\n"}))
    assert [each.file for each in GATES["phrases"].find(tree)] == [file]


@pytest.mark.parametrize(
    "line",
    [
        "import redis",
        'ask(redis, "GET", key)',
        'client.execute_command("PING")',
        'rows = [("XLEN", stream)]',
        "await store.read(command, key)",
        "await self._store.write(*words, repeat=how)",
        "await store.call(verb, keys, arguments)",
        "await self.queue.write_many(rows)",
        "await store.redis.set(key, value)",
        "await self._redis.get(key)",
        "await anything.hset(key, field, value)",
        "client = store.redis",
        'getattr(store, "wri" + "te")',
        "send = redis.execute_command",
        "from prorl_mq.store.server.connection import ask",
        "from prorl_mq.store.core import Repeat",
    ],
)
def test_redis_is_spoken_to_in_the_store_alone(line: str, planted: Plant) -> None:
    tree = Tree(planted({"prorl_mq/duties/a.py": line, "prorl_mq/store/a.py": line, "prorl_mq/dashboard/a.py": line}))
    assert [each.file for each in code.redis_outside_store(tree)] == ["prorl_mq/duties/a.py"]


@pytest.mark.parametrize(
    "line",
    [
        "await jobs.read(store, refs)",
        "await fitness.start_up(store.redis)",
        "settings.redis.url",
        "known.get(name)",
        "await redis.aclose()",
        "from prorl_mq.store.server.connection import connect",
    ],
)
def test_functions_of_the_store_may_be_called_from_everywhere(line: str, planted: Plant) -> None:
    assert list(code.redis_outside_store(Tree(planted({"prorl_mq/duties/a.py": line})))) == []


def test_more_than_allowed_fails_and_names_the_new_one(planted: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    root = planted({"api/old.py": "# for ever\n"})
    arguments = ["--root", str(root), "--allowed", str(root / "allowed.toml")]
    assert main([*arguments, "--tighten"]) == 0
    planted({"api/new.py": "\n# anew\n"})
    capsys.readouterr()
    assert main(arguments) == 1
    assert capsys.readouterr().out.splitlines() == [
        "phrases: 2, and 1 are allowed: use the plain word. New ones are in these files:",
        "  api/new.py:2: 'anew': again",
    ]


def test_a_number_is_never_raised_by_tightening(planted: Plant) -> None:
    root = planted({"api/old.py": "# for ever\n"})
    arguments = ["--root", str(root), "--allowed", str(root / "allowed.toml")]
    main([*arguments, "--tighten"])
    planted({"api/new.py": "# anew\n"})
    assert main([*arguments, "--tighten"]) == 1


def test_fewer_than_allowed_fails_until_the_number_is_lowered(
    planted: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    root = planted({"api/old.py": "# for ever, anew\n"})
    arguments = ["--root", str(root), "--allowed", str(root / "allowed.toml")]
    main([*arguments, "--tighten"])
    planted({"api/old.py": "# for ever\n"})
    capsys.readouterr()
    assert main(arguments) == 1
    assert "phrases: 1, and 2 are allowed: lower the number to 1" in capsys.readouterr().out
    assert main([*arguments, "--tighten"]) == 0
    assert main(arguments) == 0


def test_a_gate_without_a_number_allows_nothing(planted: Plant) -> None:
    root = planted({"api/old.py": "# for ever\n"})
    assert main(["--root", str(root), "--allowed", str(root / "gone.toml")]) == 1


def test_findings_of_mypy_are_read_from_its_output() -> None:
    output = "tests/a.py:3: error: wrong  [arg-type]\ntests/a.py:3: note: why\nFound 1 error in 1 file\n"
    assert mypy_findings(output) == [("tests/a.py", 3, "wrong  [arg-type]")]


def test_a_mypy_that_broke_off_is_no_clean_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("mypy: error: INTERNAL ERROR\n"))
    with pytest.raises(SystemExit, match="INTERNAL ERROR"):
        main(["--types"])


@pytest.mark.parametrize("text", ['parser.add_argument("--knob")', "add = parser.add_argument"])
def test_flags_are_added_to_a_command_line_in_one_module(text: str, planted: Plant) -> None:
    tree = Tree(planted({"slurm/a.py": text, "prorl_mq/settings.py": text, "api/settings.py": text}))
    assert [each.file for each in code.undeclared_flags(tree)] == ["api/settings.py", "slurm/a.py"]


@pytest.mark.parametrize(
    ("declared", "counted"),
    [
        ('Setting("--knob")', ["--knob"]),
        ('Setting("--knob", variable="PRORL_KNOB")', ["--knob", "PRORL_KNOB"]),
        ('Setting("PRORL_KNOB")', ["PRORL_KNOB"]),
        ('Setting("knob")', []),
    ],
)
def test_a_declared_setting_counts_with_its_variable(declared: str, counted: list[str], planted: Plant) -> None:
    tree = Tree(planted({"api/a.py": f"SETTINGS = ({declared},)\n"}))
    assert [each.what for each in code.settings(tree)] == counted
