"""Tasks in Harbor's format for this service.

python -m workers.handlers.harbor rows TASKS     a line for each task, as `prorl-mq submit` takes it
python -m workers.handlers.harbor build TASKS    builds the images of tasks that have a Dockerfile and no docker_image

TASKS is a directory of tasks, one task, or REGISTRY.json[:NAME[@VERSION]]. Exit codes: 0; 1 if a task was refused or an
image could not be built; 2 if there are no tasks.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from prorl_mq.settings import Setting, add
from sandbox.errors import SandboxError
from workers.handlers.harbor import building, dataset, images
from workers.handlers.harbor.dockerfile import Unbuildable
from workers.handlers.harbor.reading import BadTask, HarborTask
from workers.handlers.harbor.recipe import BUILT
from workers.handlers.harbor.verifying import eval_ms

SETTINGS = (
    Setting("what", "what to do", choices=("rows", "build")),
    Setting("tasks", "a directory, or a registry's file", metavar="TASKS"),
)
_FETCHES = re.compile(r"\b(curl|wget|apt-get|apk|uvx|git clone)\b|\b(pip|uv|npm|conda)\s+(\w+\s+)?install\b")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.handlers.harbor",
        description="Tasks in Harbor's format: rows of them, and their images.",
    )
    add(parser, SETTINGS, {})
    given = parser.parse_args(argv)
    try:
        paths = dataset.directories(given.tasks)
    except dataset.NoTasks as error:
        print(f"harbor: {error}", file=sys.stderr)
        return 2
    tasks = [(path, each) for path, each in zip(paths, dataset.read_all(paths), strict=True)]
    refused = [each for _, each in tasks if isinstance(each, BadTask)]
    for bad in refused:
        print(f"refused: {bad}", file=sys.stderr)
    good = [(path, each) for path, each in tasks if not isinstance(each, BadTask)]
    failed = _rows(good) if given.what == "rows" else asyncio.run(_build(good))
    return int(bool(refused) or failed)


def _rows(tasks: Sequence[tuple[Path, HarborTask]]) -> bool:
    for path, task in tasks:
        print(json.dumps(dataset.line(task), ensure_ascii=False))
        for number, text in _fetching(path):
            print(f"{path}/tests/test.sh:{number}: seems to need a network, and there is none: {text}", file=sys.stderr)
    if tasks:
        run_s = max(task.config.agent.timeout_sec or 0 for _, task in tasks)
        needed_ms = eval_ms(max(task.config.verifier.timeout_sec for _, task in tasks))
        told = f" --limits run_ms={int(run_s * 1000)}" if run_s else " --limits"
        print(f"{len(tasks)} tasks; their own timeouts need at least{told} eval_ms={needed_ms}", file=sys.stderr)
    return False


def _fetching(path: Path) -> list[tuple[int, str]]:
    script = path / "tests" / "test.sh"
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines() if script.is_file() else []
    return [(at, text.strip()[:80]) for at, text in enumerate(lines, 1)
            if not text.lstrip().startswith("#") and _FETCHES.search(text)]  # fmt: skip


async def _build(tasks: Sequence[tuple[Path, HarborTask]]) -> bool:
    place, failed = images.directory(), False
    for path, task in tasks:
        if not task.row.image.startswith(BUILT):
            print(f"{task.name}: {task.row.image} is published; nothing to build")
            continue
        timeout_s = task.config.environment.build_timeout_sec
        try:
            image, new = await building.build(path / "environment", place, place.parents[1], timeout_s=timeout_s)
            print(f"{task.name}: {image}{' (built)' if new else ''}", flush=True)
        except (SandboxError, Unbuildable, OSError) as error:
            failed = True
            print(f"{task.name}: its image cannot be built: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
