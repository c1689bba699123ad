"""What is left when a trainer has acknowledged: the pages show it from the archive, and a bundle from disk."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from api.viewing.bundle import bundle
from api.viewing.sources import source_of
from prorl_mq.store.archive.place import DIRECTORY
from tests.ui.conftest import PATIENCE_MS, Opened, shown
from tests.ui.stand import Stand
from tests.ui.told import finished

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def archived(stand: Stand) -> Path:
    """The archive, with a run whose groups were acknowledged."""
    directory = stand.world.directory / DIRECTORY
    directory.mkdir(exist_ok=True)
    stand.until(lambda: "prorl_archive_on 1.0" in stand.client.get("/metrics").text, "the service has seen the archive")
    finished(stand, "kept")
    cursors = [each["cursor"] for each in stand.get("runs/kept/results")["results"]]
    stand.client.post("/v1/runs/kept/ack", json={"cursors": cursors}).raise_for_status()
    stand.until(lambda: len(stand.get("runs/kept/groups", state="archived")["groups"]) == 2, "it is archived")
    return directory


def walked(page: Page) -> None:
    """From a run to the tokens of a sample."""
    page.get_by_role("link", name="first-0", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Group first-0")
    page.get_by_role("link", name="turns of sample 1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Trajectory of kept:first-0:1")
    first = page.get_by_role("article").first
    expect(first).to_contain_text("I look first.")
    first.get_by_role("button", name="Tokens").click()
    expect(first.locator(".token")).to_have_count(24)


def test_after_the_acknowledgement_pages_show_the_archive_and_a_bundle_opens_from_disk(
    stand: Stand, opened: Opened, browser: Browser, archived: Path, tmp_path: Path
) -> None:
    page = opened("runs/kept")
    expect(page.get_by_role("region", name="Archived groups").get_by_role("rowheader")).to_have_count(2)
    walked(page)
    expect(page.locator("h1 ~ .badge").last).to_have_text("archived")
    page.goto(f"{stand.url}/ui/#/batches/kept:first")
    expect(page.get_by_role("region", name="Archived groups").get_by_role("rowheader")).to_have_count(2)
    page.goto(f"{stand.url}/ui/#/jobs/kept:first-0:1")
    expect(page.locator(".why")).to_contain_text("this is the archive's copy")
    expect(page.get_by_role("region", name="Time line").get_by_role("row").last).to_contain_text("finish")

    page.goto(f"{stand.url}/ui/#/explore/kept")
    page.get_by_role("searchbox", name="Words").fill("GUESS that")
    page.keyboard.press("Enter")
    expect(page.locator(".hits mark")).to_have_text(["guess"] * 2)

    out = tmp_path / "page"
    bundle(source_of(archived), out)
    wrong: list[str] = []
    with browser.new_context(offline=True) as context:
        context.set_default_timeout(PATIENCE_MS)
        disk = context.new_page()
        disk.on("pageerror", lambda error: wrong.append(str(error)))
        disk.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        disk.goto(f"file://{out}/index.html")
        shown(disk)
        disk.get_by_role("link", name="kept", exact=True).click()
        walked(disk)
        disk.goto(f"file://{out}/index.html#/compare/kept:first-0/0,1")
        side = disk.get_by_role("region", name="Samples side by side").get_by_role("row").nth(1).get_by_role("cell")
        expect(side.nth(0)).to_contain_text("I guess")
        disk.goto(f"file://{out}/index.html#/charts/kept")
        expect(disk.get_by_role("img", name="Reward, 1 points from 1: first")).to_be_visible()
        expect(disk.locator(".plot canvas")).to_have_count(11)
        disk.goto(f"file://{out}/index.html#/lists/kept/archived//0")
        expect(disk.get_by_role("region", name="Groups").get_by_role("rowheader")).to_have_count(2)
        disk.goto(f"file://{out}/index.html#/jobs/kept:none:0")
        expect(disk.get_by_role("heading", level=1)).to_have_text("Not there")
    assert wrong == []
