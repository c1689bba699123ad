"""A sample of the programs of `programs_report` earns what it should, also beside a neighbour that takes the node."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from tests.graders.neighbour import CPUS, by_wall_clock, programs, rewards, spinning
from tests.graders.programs_corpus import Case, cases
from tests.graders.programs_report import drawn, graded, wrong
from tests.handlers.conftest import provider
from workers.handlers.code.family import Code
from workers.rehearsal.stages import rehearsing

__all__ = ["provider"]
pytestmark = pytest.mark.anyio
PROGRAMS = int(os.environ.get("PRORL_GRADED_PROGRAMS", "3"))  # of each family and kind
SPIN = "for n in $(seq 60); do (while :; do :; done) & done; wait"


@pytest.fixture
async def neighbour(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    """A sandbox with sixty processes that spin."""
    box = await provider.create(SandboxSpec(owner="neighbour"))
    spinning = asyncio.create_task(box.run(["sh", "-c", SPIN], timeout_s=3600.0))
    yield box
    spinning.cancel()
    await box.close()


@pytest.mark.slow
async def test_programs_earn_what_they_should(provider: SandboxProvider) -> None:
    async with rehearsing(provider) as rehearsal:
        assert wrong(await graded(rehearsal, drawn(cases(), PROGRAMS))) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_neighbour_that_spins_changes_no_reward(provider: SandboxProvider, neighbour: Sandbox) -> None:
    def fits(case: Case) -> bool:
        return case.kind != "hack" and "waits" not in case.name

    chosen = [case for case in drawn(cases(), PROGRAMS) if fits(case)][: max(10, PROGRAMS * 4)]
    async with rehearsing(provider) as rehearsal:
        assert wrong(await graded(rehearsal, chosen)) == []
    assert int((await neighbour.run(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"])).stdout) > 60, "it still spins"


@pytest.mark.timeout(600)
async def test_programs_that_need_their_time_keep_their_rewards_which_a_wall_clock_would_take(
    provider: SandboxProvider,
) -> None:
    """`make test-neighbour` does the same with 200."""
    needing = [each for each in programs(6) if isinstance(each.family, Code)][:2]
    async with rehearsing(provider) as rehearsal, spinning(provider):
        assert await rewards(rehearsal, needing) == [1.0, 0.0]
        assert 0.0 in await by_wall_clock(provider, needing[:1] * 2 * CPUS), "a control"
