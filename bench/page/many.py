"""A run of 10,000 groups in the web page: how long it reads them, and blocks its main thread, with each click.

The page of `prorl-mq view` over a file of samples, so no queue is measured. Lists come 200 groups at a time, as
from a service.
"""

import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from playwright.sync_api import Browser, Page

from prorl_mq.cli.out_file import row
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict

GROUPS: Final = 10_000
STEPS: Final = 100
SAMPLES: Final = 8
PATIENCE_MS: Final = 300_000


def write_groups(path: Path) -> None:
    """As `submit` writes them, without tokens. No two notes of graders are alike."""
    chance = random.Random(1)
    with path.open("wb") as file:
        for number in range(GROUPS):
            name = f"step-{number * STEPS // GROUPS}-{number}"
            rewards = [float(chance.random() < number / GROUPS) for _ in range(SAMPLES)]
            samples = [
                SampleRecord(job_id=f"r:{name}:{place}", index=place, outcome=Outcome.COMPLETED, turns=3, reward=reward,
                             note=f"the answer is {chance.randrange(GROUPS)}, and not {number}")
                for place, reward in enumerate(rewards)
            ]  # fmt: skip
            record = GroupRecord(
                run_id="r", batch_id=f"step-{number * STEPS // GROUPS}", group_id=name, task_id=f"task-{number % 500}",
                data_source="math", verdict=Verdict.ACCEPTED, samples=samples, n=SAMPLES,
            )  # fmt: skip
            file.writelines(msgspec.json.encode(row(record, place, None)) + b"\n" for place in range(SAMPLES))


@contextmanager
def viewed(path: Path) -> Iterator[str]:
    argv = [sys.executable, "-m", "api.viewing", str(path), "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+?(?=/ui)", server.stdout.readline())
            assert found is not None
            yield found.group()
        finally:
            server.terminate()


def visits(browser: Browser, url: str, watch: str) -> dict[str, tuple[float, float]]:
    """Seconds and the longest task, ms, of the charts, the list of all groups, its sort, a filter, and failures."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(watch)
    found = {}

    def took(name: str, began: float) -> None:
        longest = float(page.evaluate("new Promise(done => setTimeout(() => done(window.longest), 200))"))
        found[name] = (time.monotonic() - began - 0.2, longest)
        page.evaluate("window.longest = 0")

    began = time.monotonic()
    page.goto(f"{url}/ui/#/charts/r")
    page.locator(f"[aria-label^='Reward, {STEPS} points']").wait_for()
    took("charts of the run, all groups read", began)
    began = time.monotonic()
    page.goto(f"{url}/ui/#/explore/r")
    rows(page).first.wait_for()
    took("the list of all groups", began)
    began = time.monotonic()
    page.get_by_role("button", name="Mean").click()
    took("sorted by mean reward", began)
    began = time.monotonic()
    page.get_by_label("Name, task or reason").fill("task-77")
    took("filtered by a name", began)
    began = time.monotonic()
    page.goto(f"{url}/ui/#/failures/r")
    page.locator("main[aria-busy=false] h1").wait_for()
    took("what always fails", began)
    page.context.close()
    return found


def rows(page: Page):
    return page.get_by_role("region", name="Groups").get_by_role("rowheader")
