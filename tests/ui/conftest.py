"""One browser and one service for all tests of the page; each test has runs of its own.

The browser ends with this package: its library keeps an event loop running, which other tests would stumble over.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.ui.stand import CHROMIUM, Stand

Opened = Callable[..., Page]
PATIENCE_MS = 60_000


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        said = "there is no browser: run `make browser`"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
    with sync_playwright() as playwright:
        # Its own sandbox needs rights that a container does not give; it shows pages of this project alone.
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def stand(browser: Browser) -> Iterator[Stand]:  # first the browser: without one there is nothing to start
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        stand = Stand(Path(name))
        try:
            stand.start()
            yield stand
        finally:
            stand.stop()


@pytest.fixture
def opened(browser: Browser, stand: Stand) -> Iterator[Opened]:
    """Opens a page of `/ui` by what follows the `#/`. No script may fail, nothing may break the policy of the page."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_page(address: str = "", *, url: str = "", wait: bool = True, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
        page.goto(f"{url or stand.url}/ui/#/{address}")
        if wait:
            shown(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def shown(page: Page) -> None:
    """Waits until the page has what it asked for."""
    page.wait_for_selector("main[aria-busy=false] h1")
