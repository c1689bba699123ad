"""Plug-in of `make test-fast`: what starts a process there fails, and says where its test belongs.

    python -m pytest -p tests.support.fast tests/unit

So a fast test is one by construction: no server, browser or sandbox can come in by a fixture. Hypothesis measures no
times here: on a busy machine they say nothing of a test.
"""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"}
REFUSAL = "a fast test starts no process: mark the test `process`, or move it out of tests/unit"


class Guard:
    """Refuses to start processes while a test runs, its fixtures included. An audit hook cannot be taken out again."""

    def __init__(self) -> None:
        self.shut = False
        sys.addaudithook(self.audit)

    def audit(self, event: str, _: tuple[object, ...]) -> None:
        if self.shut and event in STARTS:
            raise RuntimeError(REFUSAL)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.shut = True
        try:
            return (yield)
        finally:
            self.shut = False


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("fast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("fast")
    config.pluginmanager.register(Guard())
