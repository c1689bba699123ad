"""The format of docs/reference/formats.md, and the metadata of a package that brings it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def example() -> str:
    """The Python of the page's example."""
    page = (ROOT / "docs/reference/formats.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return code


def package(directory: Path, value: str = "shouting:Shouting") -> Path:
    """A directory for PYTHONPATH with the example as an installed package."""
    (directory / "shouting.py").write_text(example())
    metadata = directory / "prorl_shouting-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prorl-shouting\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[prorl_mq.formats]\nshouting = {value}\n")
    return directory
