"""The page at `/docs` in a browser: every operation, and nothing from outside."""

from playwright.sync_api import Browser, expect

from api.routes import OPERATIONS
from tests.ui.conftest import PATIENCE_MS
from tests.ui.stand import Stand


def test_every_operation_is_shown_without_a_request_to_anywhere_else(browser: Browser, stand: Stand) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    asked: list[str] = []
    wrong: list[str] = []
    try:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(f"{stand.url}/docs")
        expect(page.locator(".opblock")).to_have_count(len(OPERATIONS), timeout=PATIENCE_MS)
        page.click("#operations-groups-list_groups")
        page.wait_for_selector("tr[data-param-name='batch']")
    finally:
        context.close()
    assert [url for url in asked if not url.startswith((stand.url, "data:"))] == []
    assert wrong == []
