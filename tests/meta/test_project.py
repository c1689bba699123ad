"""The project keeps its own promises: generated docs, package names, what a trainer's import pulls in."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.process import ownership
from prorl_mq.schema import lifecycle, messages
from prorl_mq.store import scripts
from prorl_mq.store.layout import keys

ROOT = Path(__file__).parent.parent.parent
FINDERS = {"shipped", "FolderCopy"}  # of files that the wheel has


def test_the_state_diagram_is_the_table() -> None:
    assert f"```mermaid\n{lifecycle.mermaid()}\n```" in (ROOT / "docs" / "state_machine.md").read_text()


def test_each_package_has_one_owner() -> None:
    ownership.check()
    with pytest.raises(ConfigurationError, match=r"workers \(other-thing\)"):
        ownership.check({"workers": ["prorl-mq", "other-thing"]})


def test_the_security_target_runs_files_that_exist_and_what_attackers_were_kept_from() -> None:
    told = subprocess.run(["make", "-n", "test-security"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"tests/[\w/]+\.py", told))
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []
    assert named >= {
        "tests/sandbox/test_transfer.py", "tests/integration/test_acknowledged.py", "tests/integration/test_apart.py",
        "tests/cli/test_up.py",
    }  # fmt: skip


def test_a_trainers_import_is_light() -> None:
    """A trainer's process must not pay for the service's dependencies."""
    code = (
        "import prorl_mq.client, sys;"
        "assert not {'torch','transformers','starlette','uvicorn','workers','api'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("client", ["AsyncClient", "Client"])
def test_a_trainer_that_speaks_http_loads_neither_redis_nor_the_store(client: str) -> None:
    """The control is the same client on a Redis address, which needs both."""
    code = """
import sys
from prorl_mq.client import AsyncClient, Client
def loaded():
    return [name for name in sys.modules if name.split(".")[0] == "redis" or name.startswith("prorl_mq.store")]
{client}("http://localhost:1")
assert not loaded(), loaded()
{client}("redis://localhost:1")
assert {{"redis", "prorl_mq.store.store"}} <= set(loaded()), loaded()
"""
    subprocess.run([sys.executable, "-c", code.format(client=client)], check=True, cwd=ROOT)


def test_every_key_is_in_the_table_of_keys() -> None:
    """Whoever adds a key says who owns it and when it ends."""
    names = re.findall(r'prefix(?:\}| \+ ")([a-z:]+)', Path(keys.__file__).read_text())
    assert len(names) > 20
    for name in names:
        kind = name.strip(":").split(":")[0]
        assert re.search(rf"(\||, | )`?{kind}", keys.__doc__ or ""), name


def test_every_outcome_is_in_the_glossary() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    for outcome in messages.Outcome:
        assert f"`{outcome}`" in text


def test_every_script_can_be_put_together() -> None:
    for name in scripts.names():
        assert "--@include" not in scripts.script(name).text


def test_no_message_sends_a_user_of_the_wheel_to_the_checkout() -> None:
    """`doctor` named a program that the wheel's user did not have. A message may name one that says it is there."""
    planted = (
        "'ops/docstring.sh'; shipped('ops/b.sh'); print(f'{1}: run ops/c.sh DIR'); said = '`make setup` brings it'"
    )
    assert sorted(_sent(planted)) == [": run ops/c.sh DIR", "`make setup` brings it"]
    packages = ("prorl_mq", "workers", "sandbox", "api", "slurm")
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(modules) > 300
    assert [(path.name, text) for path in modules for text in _sent(path.read_text()) if "checkout" not in text] == []


def _sent(code: str) -> list[str]:
    """Texts that name files of `ops` or targets of make, but for docstrings and what the wheel has."""
    nodes = list(ast.walk(ast.parse(code)))
    other = [node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    finding = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in FINDERS]
    known = {id(inner) for node in (*other, *finding) for inner in ast.walk(node)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in known]
    return [text for text in texts if isinstance(text, str) and re.search(r"\bops/[a-z]|`make [a-z-]+`", text)]
