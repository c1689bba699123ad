# ruff: noqa: INP001  (a program, not a module)
"""Writes the table of how SWE-bench runs each version of a repository, from the last package that has it.

    python ops/swe-specs.py PACKAGE_DIR [FILE]

PACKAGE_DIR is where `make swe-table` has unpacked the wheel of `PACKAGE`, and FILE workers/handlers/swe/specs.json.
Kept are facts alone: of the repositories of SWE-bench the Python and the commands of its evaluation; of others the
language, if it is not Python.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

PACKAGE = "swebench==4.1.0"
FILE = Path(__file__).resolve().parents[1] / "workers/handlers/swe/specs.json"
KEPT = ("python", "install", "eval_commands", "test_cmd")
LANGUAGES = ("c", "go", "java", "javascript", "php", "ruby", "rust")
REPOSITORIES = (
    "astropy/astropy", "django/django", "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask", "psf/requests",
    "pydata/xarray", "pylint-dev/pylint", "pytest-dev/pytest", "scikit-learn/scikit-learn", "sphinx-doc/sphinx",
    "sympy/sympy",
)  # fmt: skip


def table(package: Path) -> dict[str, Any]:
    """The table's content: of each repository, specs with the versions that share them."""
    constants = runpy.run_path(str(package / "swebench/harness/constants/python.py"))
    known = constants["MAP_REPO_VERSION_TO_SPECS_PY"]
    return {
        "source": f"{PACKAGE} (MIT licence), MAP_REPO_VERSION_TO_SPECS of the 12 repositories of SWE-bench",
        "repositories": {repository: _grouped(known[repository]) for repository in REPOSITORIES},
        "languages": {language: _others(package, language) for language in LANGUAGES},
    }


def _others(package: Path, language: str) -> list[str]:
    """The repositories whose tests another language's tools run."""
    constants = runpy.run_path(str(package / f"swebench/harness/constants/{language}.py"))
    return sorted(next(value for name, value in constants.items() if name.startswith("MAP_REPO_VERSION_TO_SPECS_")))


def _grouped(versions: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for version, spec in versions.items():
        kept = {name: spec[name] for name in KEPT if spec.get(name)}
        found.setdefault(json.dumps(kept, sort_keys=True), {"versions": [], **kept})["versions"].append(version)
    return list(found.values())


def main() -> None:
    """Writes the file."""
    made = json.dumps(table(Path(sys.argv[1])), indent=1) + "\n"
    Path(sys.argv[2] if len(sys.argv) > 2 else FILE).write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
