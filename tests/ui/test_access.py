"""The page for everybody: by keyboard alone, by a screen reader, in the dark, and on a small screen."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import PATIENCE_MS, Opened, shown
from tests.ui.stand import AXE, Stand
from tests.ui.told import finished, pages

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def told(stand: Stand) -> dict[str, str]:
    finished(stand, "axe")
    return pages("axe")


def faults(page: Page) -> list[tuple[str, Any]]:
    """What axe-core finds wrong, of every rule that it has except the experimental ones."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found["violations"]]


@pytest.fixture(scope="module")
def guarded(stand: Stand, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an API that asks for a token."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    tokens.write_text("[tenants.default]\ntoken = 'token-of-default'\n")
    tokens.chmod(0o600)
    return stand.start_api("api-guarded", "--tokens", str(tokens))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_a_token_is_asked_for(opened: Opened, guarded: str, scheme: str) -> None:
    page = opened(url=guarded, color_scheme=scheme)
    page.get_by_label("Token of your tenant").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("does not know this token")
    assert faults(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(opened: Opened, told: dict[str, str], scheme: str) -> None:
    page = opened(color_scheme=scheme)
    found = {}
    for name, address in told.items():
        show(page, address)
        if name == "trajectory":
            page.locator("summary").click()
            page.get_by_role("button", name="Tokens of the prompt").click()
            page.get_by_role("button", name="Tokens and log").first.click()
            page.locator(".tokens").nth(1).wait_for()
        found[name] = faults(page)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("screen", [360, 1200, 2560])
def test_no_page_is_wider_than_its_screen_or_wastes_it(opened: Opened, told: dict[str, str], screen: int) -> None:
    page = opened(viewport={"width": screen, "height": 740})
    wide = {}
    for name, address in told.items():
        show(page, address)
        wide[name] = page.evaluate("document.documentElement.scrollWidth")
    assert {name: width for name, width in wide.items() if width > screen} == {}
    assert page.evaluate("document.querySelector('main').clientWidth") >= 0.7 * screen
    show(page, told["group"])
    link = page.get_by_role("link", name="turns of sample 1").bounding_box()
    assert link
    assert link["x"] + link["width"] <= screen, "it was there, to the right of a phone's screen"


def test_the_keyboard_alone_leads_to_the_tokens_and_the_focus_is_always_seen(
    opened: Opened, told: dict[str, str]
) -> None:
    page = opened()
    for link in ("axe", "first", "first-0", "turns of sample 1"):
        tab_to(page, link)
        page.keyboard.press("Enter")
        page.wait_for_function("name => document.activeElement.matches('h1')", arg=link)
        shown(page)
    tab_to(page, "Tokens and log-probabilities")
    page.keyboard.press("Enter")
    expect(page.locator(".token").first).to_be_visible()


def test_the_first_stop_skips_to_the_content(opened: Opened, told: dict[str, str]) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert focus(page)["name"] == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def show(page: Page, address: str) -> None:
    page.evaluate("document.querySelector('main').setAttribute('aria-busy', 'true')")
    page.evaluate("address => { location.hash = '#/' + (address === '' ? '' : address) }", address or "")
    if not address:
        page.evaluate("dispatchEvent(new HashChangeEvent('hashchange'))")
    shown(page)


def tab_to(page: Page, name: str) -> None:
    """Presses Tab until the focus is on something of that name."""
    passed = []
    for _ in range(80):
        page.keyboard.press("Tab")
        now = focus(page)
        assert now["outline"] != "none", f"the focus on {now['name']!r} is not seen"
        if now["name"] == name:
            return
        passed.append(now["name"])
    pytest.fail(f"the keyboard does not come to {name!r}; it came to {passed}")


def focus(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        """() => { const at = document.activeElement;
        return {name: at.getAttribute('aria-label') ?? at.textContent.trim(),
        outline: getComputedStyle(at).outlineStyle} }"""
    )
    return found


def test_a_link_with_the_token_opens_the_page_and_the_address_does_not_keep_it(
    opened: Opened, stand: Stand, tmp_path: Path
) -> None:
    url = stand.start_api("api-own", "--state-dir", str(tmp_path))
    page = opened(url=url)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()  # the control: without it
    token = (tmp_path / "token").read_text()
    page.goto(f"{url}/ui/#token={token}/backends")
    expect(page.get_by_role("heading", level=1)).to_have_text("Backends")
    assert token not in page.url
    page = opened(url=url)
    page.goto("about:blank")
    page.goto(f"{url}/ui#token={token}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert token not in page.url
