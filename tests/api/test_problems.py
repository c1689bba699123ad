"""The answer to a fault blames what has failed."""

import errno

import pytest

from api.problems import problem_of
from prorl_mq.store.server import faults


@pytest.mark.parametrize("hidden", [False, True])
def test_a_fault_of_this_machine_is_not_said_to_be_one_of_redis(monkeypatch: pytest.MonkeyPatch, hidden: bool) -> None:
    """The control takes every `OSError` for a fault of Redis."""
    if hidden:
        monkeypatch.setattr(faults, "OUTAGES", (*faults.OUTAGES, OSError))
    full = problem_of(OSError(errno.ENOSPC, "no room for it"))
    assert ("Redis" in str(full)) is hidden
    assert full.document.status == (503 if hidden else 500)


@pytest.mark.parametrize("kind", [ConnectionRefusedError, TimeoutError])
def test_a_socket_that_fails_is_an_outage_of_redis(kind: type[OSError]) -> None:
    assert problem_of(kind("no answer")).document.status == 503
