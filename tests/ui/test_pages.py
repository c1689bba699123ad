"""What people see: each page tells what the service holds, and follows as it changes."""

import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from prorl_mq.process.ports import free_port
from tests.ui.conftest import PATIENCE_MS, Opened, shown
from tests.ui.stand import Stand, scene, tale
from tests.ui.told import counted, epic, finished

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)


def row(page: Page, table: str, start: str) -> list[str]:
    """The cells of the row that begins with a text."""
    found = (
        page.get_by_role("region", name=table).get_by_role("row").filter(has=page.get_by_role("rowheader", name=start))
    )
    return [cell.strip() for cell in found.first.locator("th,td").all_inner_texts()]


def test_one_comes_from_the_overview_to_the_tokens_of_a_sample(stand: Stand, opened: Opened) -> None:
    finished(stand, "walk")
    page = opened()
    page.get_by_role("link", name="walk", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Run walk")
    page.get_by_role("link", name="first", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch first")
    page.get_by_role("link", name="first-0", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Group first-0")
    assert row(page, "Samples", "1")[1:7] == ["completed", "turns", "–", "1.00", "1.00", "2"]
    page.get_by_role("link", name="turns of sample 1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trajectory of walk:first-0:1")
    first = page.get_by_role("article").first
    expect(first).to_contain_text("I look first.")
    expect(first.locator(".arguments")).to_have_text("commandls | wc -l")
    first.get_by_role("button", name="Tokens").click()
    expect(first.locator(".token")).to_have_count(24)
    told = stand.get("jobs/walk:first-0:1/trajectory")["segments"][0]
    shown_ids = [int(text.split()[0]) for text in first.locator(".token").all_inner_texts()]
    assert shown_ids == told["response_ids"][:24]
    masks = [cell.get_attribute("data-mask") for cell in first.locator(".token").all()]
    assert masks == [str(mask) for mask in told["loss_mask"][:24]]
    logprobs = [text.replace("−", "-") for text in first.locator(".token small").all_inner_texts()]
    assert logprobs == ["given" if each is None else f"{each:.2f}" for each in told["logprobs"][:24]]


def test_samples_stand_side_by_side(stand: Stand, opened: Opened) -> None:
    finished(stand, "sides")
    page = opened("groups/sides:first-0")
    page.get_by_role("link", name="Compare samples side by side").click()
    second = page.get_by_role("region", name="Samples side by side").get_by_role("row").nth(1).get_by_role("cell")
    expect(second).to_have_count(2)
    expect(second.nth(0)).to_contain_text("I guess")
    expect(second.nth(0).get_by_role("group", name="Reply to turn 1")).to_contain_text("Guess again.")
    expect(second.nth(1)).to_contain_text("I look first.")


def test_a_batch_shows_how_far_it_is_without_being_loaded_again(stand: Stand, opened: Opened) -> None:
    held = tale([scene("I wait.", pause_ms=3_600_000)])
    stand.submit("live", "first", [("held", held), ("count-1", counted())], n=2, dapo={"target_groups": 2})
    stand.closed("live", 1)
    page = opened("batches/live:first")
    expect(page.locator(".target")).to_have_text("1 of 2 informative groups")
    assert row(page, "Open groups", "first-0")[2:4] == ["running", "0/2"]
    page.evaluate("window.kept = true")
    stand.client.post("/v1/batches/live:first/cancel").raise_for_status()
    expect(page.get_by_role("heading", name="Report")).to_be_visible()
    expect(page.locator("h1 + .badge")).to_have_text("closed")
    assert row(page, "Closed groups", "first-0")[2] == "cancelled"
    assert page.evaluate("window.kept") is True


def test_more_groups_than_fit_on_a_page_are_all_found(stand: Stand, opened: Opened) -> None:
    names = [f"count-{number}" for number in range(105)]
    stand.submit("many", "first", [(name, tale([scene("Two.", tokens=1)])) for name in names], n=1)
    stand.submit("many", "second", [("other", counted())], n=2)
    stand.closed("many", 106)
    page = opened("batches/many:first")
    closed = page.get_by_role("region", name="Closed groups")
    expect(closed.get_by_role("rowheader")).to_have_count(50)
    page.get_by_role("link", name="More closed groups").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Closed groups, not acknowledged")
    expect(closed.get_by_role("rowheader")).to_have_count(55)
    page.get_by_role("link", name="From the first").click()
    expect(closed.get_by_role("rowheader")).to_have_count(100)
    page.get_by_role("link", name="Next").click()
    expect(closed.get_by_role("rowheader")).to_have_count(5)


def test_a_job_shows_why_it_waits_and_then_its_time_line(stand: Stand, opened: Opened) -> None:
    held = tale([scene("I wait.", pause_ms=3_600_000)])
    stand.submit("line", "first", [("held", held)], n=1)
    stand.until(lambda: stand.get("jobs/line:first-0:0")["stage"] == "run", "the job runs")
    page = opened("jobs/line:first-0:0")
    expect(page.locator(".why")).to_contain_text("working on it in run")
    stand.client.post("/v1/jobs/line:first-0:0/cancel").raise_for_status()
    expect(page.get_by_role("region", name="Time line").get_by_role("row").last).to_contain_text("cancelled")
    events = page.get_by_role("region", name="Time line").locator("tbody th").all_inner_texts()
    told = [each["event"] for each in stand.get("jobs/line:first-0:0/events")["events"]]
    assert [event.strip() for event in events] == told


def test_what_happens_is_told_by_the_overview_while_it_is_open(stand: Stand, opened: Opened) -> None:
    page = opened()
    expect(page.locator("#live")).to_have_text("live")
    finished(stand, "told")
    feed = page.get_by_role("region", name="Newest events")
    expect(feed).to_contain_text("told:first-1:")
    expect(page.get_by_role("region", name="Runs").get_by_role("link", name="told", exact=True)).to_be_visible()


def test_a_page_follows_again_after_the_service_was_away(stand: Stand, opened: Opened) -> None:
    url = stand.start_api("api-1")
    page = opened("runs/away", url=url, wait=False)
    expect(page.get_by_role("heading", level=1)).to_have_text("Not there")
    finished(stand, "away")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#live")).to_have_text("live")
    stand.world.kill("api-1")
    expect(page.locator("#live")).to_have_text("reconnecting")
    port = url.rpartition(":")[2]
    stand.start_api("api-1b", "--port", port)
    expect(page.locator("#live")).to_have_text("live")
    stand.submit("away", "second", [("count-3", counted())], n=2)
    expect(page.get_by_role("link", name="second", exact=True)).to_be_visible()


def test_fifty_turns_of_32_thousand_tokens_take_a_bounded_number_of_elements(stand: Stand, opened: Opened) -> None:
    stand.submit("long", "first", [("long", epic())], n=1)
    [record] = stand.closed("long", 1)
    assert record["samples"][0]["turns"] == 50
    page = opened("trajectories/long:first-0:0/0", permissions=["clipboard-read", "clipboard-write"])
    count = "document.getElementsByTagName('*').length"
    expect(page.get_by_role("article")).to_have_count(10)
    assert page.evaluate(count) < 900  # a cell of the map for each turn among them
    assert page.evaluate("document.body.textContent.length") < 10 * 2 * 4_000 + 20_000
    for button in page.get_by_role("button", name="Tokens and log").all():
        button.click()
    expect(page.locator(".tokens")).to_have_count(10)
    assert page.evaluate(count) < 900 + 10 * 256 * 3
    article = page.get_by_role("article").first
    article.locator(".copy").first.click()
    expect(article.locator(".copy").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == epic()["scripts"][0][0]["text"]
    article.get_by_role("button", name=re.compile("Show all")).first.click()
    expect(article.locator(".markdown").first).to_have_text(epic()["scripts"][0][0]["text"])
    page.get_by_role("link", name="Last").first.click()
    expect(page.get_by_role("article").last).to_contain_text("Turn 50")
    shown(page)
    assert page.evaluate(count) < 900


def test_a_part_that_cannot_be_had_takes_the_overview_not_away(opened: Opened) -> None:
    page = opened("runs")
    page.route("**/v1/runs", lambda route: route.fulfill(status=503, content_type="application/json", body="{}"))
    page.goto(page.url.replace("#/runs", "#/"))
    expect(page.get_by_role("list", name="Stages")).to_be_visible()
    expect(page.get_by_text("No runs here:")).to_be_visible()


def test_a_router_shows_cells_as_one_service_and_names_a_lost_one(stand: Stand, opened: Opened, tmp_path: Path) -> None:
    finished(stand, "routed")
    file = tmp_path / "cells.toml"
    file.write_text(f'[cells]\nhere = "{stand.url}"\naway = "http://127.0.0.1:{free_port()}"\n')
    url = stand.listening("router", [sys.executable, "-m", "api.cells", str(file), "0"])
    page = opened(url=url, wait=False)
    expect(page.get_by_text("cell away does not answer")).to_be_visible()
    runs = page.get_by_role("region", name="Runs")
    expect(runs.get_by_role("row").filter(has_text="routed")).to_contain_text("here")
    runs.get_by_role("link", name="routed", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("routed")
