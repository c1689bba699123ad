"""What the page changes: it asks first, says what came of it, and offers nothing to whoever may only look."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import PATIENCE_MS, Opened
from tests.ui.stand import Stand, call, scene, tale
from tests.ui.test_access import faults

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)
ENDLESS_MS = 3_600_000


def held(stand: Stand, run: str) -> str:
    """A run of one group whose only sample has a turn behind it and stays in its second; the sample's id."""
    script = [scene("I look.", call("execute_bash", "{}", "two files\n")), scene("I wait.", pause_ms=ENDLESS_MS)]
    stand.submit(run, "first", [("held", tale(script))], n=1)
    job = f"{run}:first-0:0"
    path = f"jobs/{job}/log"
    stand.until(lambda: (log := stand.get(path))["turns"] and log["under_way"], "its second turn is logged")
    return job


def agree(page: Page, act: str) -> None:
    """Answers the question, and waits until it says what came of it."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=act).click()
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()


def test_turns_are_shown_while_the_rollout_is_under_way(stand: Stand, opened: Opened) -> None:
    job = held(stand, "underway")
    page = opened("groups/underway:first-0")
    page.get_by_role("link", name="turns so far of sample 0").click()
    expect(page.get_by_role("article")).to_have_count(2)
    first, second = page.get_by_role("article").all()
    expect(first).to_contain_text("two files")
    expect(second).to_contain_text("its calls are under way")
    expect(first).not_to_contain_text("under way")
    assert faults(page) == []
    page.evaluate("document.querySelector('article').kept = true")
    stand.client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    expect(page.get_by_text("It has left RUN")).to_be_visible()
    assert page.evaluate("document.querySelector('article').kept"), "what was there is not rendered again"


def test_a_job_is_cancelled_only_when_the_question_is_answered(stand: Stand, opened: Opened) -> None:
    job = held(stand, "doomed")
    page = opened(f"jobs/{job}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Leave it")).to_be_focused()
    assert faults(page) == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert stand.get(f"jobs/{job}")["state"] != "done"
    page.get_by_role("button", name="Cancel").click()
    agree(page, "Cancel the job")
    expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("ancel")
    page.keyboard.press("Escape")
    expect(page.locator(".heading .badge").first).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_a_run_is_paused_for_as_long_as_one_says_and_resumed(stand: Stand, opened: Opened) -> None:
    job = held(stand, "pausable")
    page = opened("runs/pausable")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("For").select_option("an hour")
    agree(page, "Pause the run")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    until_ms = stand.get("runs/pausable")["paused_until_ms"]
    assert 0 < until_ms - page.evaluate("Date.now()") <= 3_600_000
    page.get_by_role("button", name="Resume").click()
    agree(page, "Resume the run")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert stand.get("runs/pausable")["paused_until_ms"] is None
    stand.client.post(f"/v1/jobs/{job}/cancel").raise_for_status()


def test_what_is_refused_is_said_in_the_question(stand: Stand, opened: Opened) -> None:
    job = held(stand, "late")
    page = opened(f"jobs/{job}")
    page.get_by_role("button", name="Pause").click()
    stand.client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    stand.until(lambda: stand.get(f"jobs/{job}")["state"] == "done", "the job has ended")
    page.get_by_role("button", name="Pause the job").click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("late:first-0:0")


def test_a_token_that_reads_only_is_offered_nothing(stand: Stand, opened: Opened, tmp_path: Path) -> None:
    job = held(stand, "watched")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("[tenants.default]\ntoken = 'token-of-default'\nread_token = 'token-of-a-reader'\n")
    tokens.chmod(0o600)
    url = stand.start_api("api-reading", "--tokens", str(tokens))
    shown = {}
    for token in ("token-of-default", "token-of-a-reader"):
        page = opened(f"jobs/{job}", url=url, wait=False)
        page.get_by_label("Token of your tenant").fill(token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=f"Job {job}")).to_be_visible()
        page.wait_for_function("document.body.dataset.may")
        shown[token] = page.get_by_role("button", name="Cancel").is_visible()
    assert shown == {"token-of-default": True, "token-of-a-reader": False}
    stand.client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
