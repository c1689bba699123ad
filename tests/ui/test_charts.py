"""A run as a researcher looks at it: charts, filters, search, failures."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import PATIENCE_MS, Opened, shown
from tests.ui.stand import Stand, call, scene, tale

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)
LOUD = scene("I run it.", call("execute_bash", '{"command": "make"}', "no rule to make target zanzibar\n", ok=False))


@pytest.fixture(scope="module")
def run(stand: Stand) -> str:
    """Three steps: the first without a reward, the others with two of four, the last ones longer."""
    hard = {**tale([LOUD], rewards=(0.0,)), "judged": True}
    stand.submit("study", "step-1", [("hard", hard), ("easy", tale([scene("2")]))])
    stand.closed("study", 2)
    for number in (2, 3):
        long = [scene("I look."), LOUD, scene("It is done.", tokens=64)]
        stand.submit("study", f"step-{number}", [("hard", hard), (f"task-{number}", tale(long))])
        stand.closed("study", 2 * number)
    return "study"


def label(page: Page, start: str) -> str:
    return page.get_by_role("img", name=re.compile(f"^{start}")).get_attribute("aria-label") or ""


def test_a_run_is_charted_over_its_steps_and_follows_as_groups_close(stand: Stand, opened: Opened, run: str) -> None:
    page = opened(f"runs/{run}")
    page.get_by_role("link", name="Charts", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Charts of study")
    expect(page.locator(".plot canvas")).to_have_count(11)
    assert label(page, "Reward, 3 points from 1: step-1 to 3: step-3").endswith(
        "mean from 0.25 to 0.25, least 0.25, most 0.25; best sample from 1.00 to 1.00, least 1.00, most 1.00"
    )
    assert "mean from 1.0 to 2.0" in label(page, "Turns, ")
    assert "share from 100 % to 100 %" in label(page, "Tool calls that failed,")
    busy = label(page, "Stage utilisation: busy slots, 3 points")
    assert re.search(r"RUN, of 32 now from \d+\.\d", busy), busy
    assert "versions behind from 0.0 to 0.0" in label(page, "Staleness")
    assert label(page, "Rewards:").startswith("Rewards: 9 from 0.00 to 0.05, 3 from 0.95 to 1.00")
    page.get_by_label("Samples of", exact=True).select_option("step-1")
    assert label(page, "Rewards:").startswith("Rewards: 3 from")
    page.locator(".plot").first.hover()
    expect(page.locator(".chart .fine").first).to_contain_text("mean 0.25")
    page.get_by_role("link", name="Over time").click()
    expect(page.get_by_role("link", name="Over time")).to_have_attribute("aria-current", "true")
    expect(page.locator(".plot canvas")).to_have_count(11)
    page.get_by_role("link", name="Over steps").click()
    stand.submit(run, "step-4", [("easy", tale([scene("2")], rewards=(1.0,)))])
    stand.closed(run, 7)
    expect(page.get_by_role("img", name=re.compile("^Reward, 4 points"))).to_be_visible()


def test_stages_were_busy_where_their_seconds_were_spent(opened: Opened) -> None:
    """Four samples close at 10 s: two seconds of EVAL each, six of RUN before it, two of INIT; two parts of five."""
    page = opened("runs")
    groups = [{"closed_ms": 10_000, "ended": 4, "seconds": {"init": 8, "run": 24, "eval": 8}}, {"closed_ms": None}]
    found = page.evaluate(
        """async groups => {
            const { busy, spanOf } = await import(new URL("figures.js", document.baseURI));
            const parts = [{ from: 0, ms: 5_000 }, { from: 5_000, ms: 5_000 }];
            return [busy(groups, parts), spanOf(groups), busy(groups.slice(1), [spanOf(groups.slice(1))])];
        }""",
        groups,
    )
    first = {"init": 4 * 2 / 5, "run": 4 * 3 / 5, "eval": 0}
    second = {"init": 0, "run": 4 * 3 / 5, "eval": 4 * 2 / 5}
    assert found[0] == [pytest.approx(first), pytest.approx(second)]
    assert found[1] == {"from": 0, "ms": 10_000}
    assert found[2] == [{"init": None, "run": None, "eval": None}]


def test_groups_are_filtered_and_sorted_and_the_address_keeps_it(opened: Opened, run: str) -> None:
    page = opened(f"explore/{run}")
    rows = page.get_by_role("region", name="Groups").get_by_role("rowheader")
    page.get_by_label("Batch").select_option("step-3")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Mean").click()
    expect(rows).to_have_text(["step-3-0", "step-3-1"])
    page.get_by_role("button", name="Mean").click()
    expect(rows).to_have_text(["step-3-1", "step-3-0"])
    page.reload()
    shown(page)
    expect(rows).to_have_text(["step-3-1", "step-3-0"])
    page.get_by_label("Rewards", exact=True).select_option("none")
    expect(rows).to_have_text(["step-3-0"])
    page.get_by_label("Batch").select_option("")
    page.get_by_label("Name, task or reason").fill("HARD")
    expect(rows).to_have_count(3)
    page.get_by_label("Name, task or reason").fill("nothing of it")
    expect(page.get_by_text("No group fits.")).to_be_visible()


def test_texts_are_found_and_lead_to_their_turn(opened: Opened, run: str) -> None:
    page = opened(f"explore/{run}")
    page.get_by_role("searchbox", name="Words").fill('"RULE to" zanzibar')
    page.keyboard.press("Enter")
    found = page.locator(".hits li")
    expect(found).to_have_count(10)
    expect(found.first.locator("mark")).to_have_text("rule to")
    page.get_by_role("searchbox", name="Words").fill("zanzibar target done")
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile("^0 hits in [67] groups"))).to_be_visible()
    page.get_by_role("searchbox", name="Words").fill("zanzibar")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=re.compile(r"step-3-1:1, turn 2, result")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trajectory of study:step-3-1:1")


def test_what_always_fails_comes_first(opened: Opened, run: str) -> None:
    page = opened(f"failures/{run}")
    tasks = page.get_by_role("region", name="Tasks without any reward above 0")
    expect(tasks.get_by_role("rowheader")).to_have_text(["hard"])
    expect(tasks.get_by_role("row").nth(1)).to_contain_text("6")
    expect(page.get_by_role("region", name="Tools whose calls fail").get_by_role("rowheader")).to_have_text(
        ["execute_bash"]
    )
    said = page.get_by_role("region", name="What graders said")
    expect(said.get_by_role("rowheader")).to_have_text(["judge oracle: NO NO NO"])
    said.get_by_role("button").click()
    told = page.get_by_role("status").filter(has_text="Is it right?")
    expect(told).to_contain_text("votes")
    told.get_by_role("link").click()
    expect(page.get_by_role("heading", name="What its grader said")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("Count the files.")
