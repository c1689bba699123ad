"""What a child process leaves."""

import sys
from pathlib import Path

import pytest

from prorl_mq.process.children import Child, Guard, Program


@pytest.mark.anyio
@pytest.mark.parametrize("left", [False, True])
async def test_a_log_is_its_users_alone(tmp_path: Path, *, left: bool) -> None:
    log = tmp_path / "logs" / "run-1.log"
    if left:
        log.parent.mkdir()
        log.write_text("before\n")
        log.chmod(0o644)
    guard = Guard(None)
    try:
        child = Child(Program(name="run-1", argv=[sys.executable, "-c", "print(1)"], log=log), say=print, guard=guard)
        await child.start()
        await child.stop(5.0)
    finally:
        await guard.aclose()
    assert log.read_text().startswith("before\n" if left else "")
    assert f"{log.stat().st_mode & 0o777:o}" == "600"
    assert left or f"{log.parent.stat().st_mode & 0o777:o}" == "700"
