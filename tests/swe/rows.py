"""The example instances of software engineering, and where their images are."""

import json
from pathlib import Path
from typing import Any

from tests.sandbox.conftest import TOOLS_DIR

ROOT = Path(__file__).parents[2]
IMAGES = TOOLS_DIR / "images" / "swe"
ROWS: dict[str, dict[str, Any]] = {
    row["task_id"]: row["payload"]
    for row in map(json.loads, (ROOT / "examples/swe/instances.jsonl").read_text().splitlines())
}
QUICK = "cpburnz__pathspec-0.12.0"
