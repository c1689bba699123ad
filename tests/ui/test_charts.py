"""A run as a researcher looks at it: charts, filters, search, failures."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

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


def test_time_in_which_no_group_closed_is_part_of_a_chart_over_time(opened: Opened) -> None:
    """Two groups of 20 s of RUN each close at 120 s and at 420 s; ten thousand others in a month are in 60 parts."""
    page = opened("runs")
    pair = [{"closed_ms": 1000 * at, "ended": 2, "seconds": {"run": 40}, "rewards": [1, 0], "std": 0.5,
             "tokens": [5, 5], "turns": [1, 1], "outcomes": {}, "tool_calls": 0, "tool_failures": {}, "versions": None}
            for at in (120, 420)]  # fmt: skip
    found = page.evaluate(
        """async pair => {
            const of = (name) => import(new URL(name, document.baseURI));
            const [{ periods }, { busy, inRow }] = [await of("every_group.js"), await of("figures.js")];
            const rows = inRow(periods(pair, 4));
            const at = (place) => ({ ...pair[0], closed_ms: 120_000 + place * 259_200 });
            const many = Array.from({ length: 10_000 }, (_, place) => at(place));
            const parts = periods(many, 60);
            return {
                froms: rows.map((row) => row.from),
                closed: rows.map((row) => row.figures.groups),
                rewards: rows.map((row) => row.figures.reward),
                seconds: busy(pair, rows).reduce((all, one, place) => all + one.run * rows[place].ms / 1000, 0),
                parts: parts.length,
                kept: parts.reduce((all, part) => all + part.groups.length, 0),
                many: busy(many, parts).reduce((all, one, place) => all + one.run * parts[place].ms / 1000, 0),
                single: periods([{ ...pair[0], seconds: {} }], 60).length,
            };
        }""",
        pair,
    )
    assert found["froms"] == [pytest.approx(100_000 + place * 320_001 / 4) for place in range(4)]
    assert found["closed"] == [1, 0, 0, 1]
    assert found["rewards"] == [0.5, None, None, 0.5]
    assert found["seconds"] == pytest.approx(2 * 40)  # all of them, those before the first close too
    assert (found["parts"], found["kept"], found["many"]) == (60, 10_000, pytest.approx(10_000 * 40))
    assert found["single"] == 1


def test_a_service_that_does_not_tell_its_slots_takes_no_chart_away(opened: Opened, run: str) -> None:
    page = opened("runs")
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=503, content_type="application/json", body="{}")

    page.route("**/v1/overview*", refuse)
    page.goto(page.url.replace("#/runs", f"#/charts/{run}"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Charts of study")
    expect(page.locator(".plot canvas")).to_have_count(11)
    assert "RUN from" in label(page, "Stage utilisation")
    assert asked


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
