"""The page shows what agents wrote, and agents write what they like: nothing of it is ever more than text."""

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Route, expect

from tests.ui.conftest import PATIENCE_MS, Opened, shown
from tests.ui.stand import Stand, call, scene, tale
from tests.ui.told import EVIL, counted

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)
TOKENS = "[tenants.default]\ntoken = 'token-of-default'\n[tenants.bob]\ntoken = 'token-of-bob'\n"


def test_what_agents_and_trainers_write_is_shown_as_text(stand: Stand, opened: Opened) -> None:
    scripts = [scene(EVIL, call(EVIL, EVIL, EVIL, ok=False)), scene(f"</pre>{EVIL}")]
    stand.submit("evil", "first", [(EVIL, tale(scripts, prompt=EVIL))], n=2)
    stand.closed("evil", 1)
    for address in ("runs/evil", "groups/evil:first-0", "trajectories/evil:first-0:0/0", "compare/evil:first-0/0,1"):
        page = opened(address)
        assert EVIL in page.evaluate("document.body.textContent")
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert "broken in" not in page.title()
    page = opened(f"jobs/{EVIL}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not there")
    assert "broken in" not in page.title()


ODD = (
    "trajectories", "trajectories/a", "trajectories/a/x", "compare", "compare/a", "pair", "pair/a", "pair/a/b/x",
    "lists", "lists/a", "lists/a/b/c/d", "groups", "jobs", "batches", "charts", "explore", "failures", "live",
    "toString", "%zz", "runs/%zz", "constructor/a", "nothing",
)  # fmt: skip


def test_an_odd_address_is_answered_in_words(opened: Opened) -> None:
    """It said that undefined is not iterable."""
    page = opened()
    for address in ODD:
        page.evaluate("document.querySelector('main').setAttribute('aria-busy', 'true')")
        page.evaluate("address => { location.hash = '#/' + address }", address)
        shown(page)
        said = page.get_by_role("main").inner_text()
        assert not re.search(r"undefined|NaN|null|is not|cannot read|\[object", said), (address, said)


def test_what_reorders_texts_or_hides_in_them_is_seen(stand: Stand, opened: Opened) -> None:
    hidden = "a \u202e)dehcaer ton( \u2066b\U000e0041"
    told = "a ⟨U+202E⟩)dehcaer ton( ⟨U+2066⟩b⟨U+E0041⟩"
    scripts = [scene(hidden, call("read", json.dumps({"path": hidden}), f"\x1b[31m{hidden}\x1b[0m\n```{hidden}```"))]
    stand.submit("hidden", "first", [("hidden", tale(scripts))], n=1)
    stand.closed("hidden", 1)
    page = opened("trajectories/hidden:first-0:0/0")
    turn = page.get_by_role("article").first
    for place in (".text", ".arguments dd", ".block pre"):
        expect(turn.locator(place).first).to_contain_text(told)
    assert hidden not in page.evaluate("document.body.textContent")
    page.get_by_role("button", name="Raw texts").click()
    assert hidden in page.evaluate("document.body.textContent")


def test_texts_that_readers_do_not_bear_are_shown_as_they_were_written(stand: Stand, opened: Opened) -> None:
    """Each of these ended the whole page, or held the browser up for minutes."""
    deep = f'{{"a": {"[" * 1_900}{"]" * 1_900}}}'
    longest = "\x1b[31m" + "=" * 190_000 + "\rits end"
    scripts = [
        scene("quotes: " + "\n" + ">" * 3_900),
        scene("- " * 1_900 + "list"),
        scene("Both.", call("b", deep, longest)),
    ]
    stand.submit("unbearable", "first", [("deep", tale([*scripts]))], n=1)
    stand.closed("unbearable", 1)
    page = opened("trajectories/unbearable:first-0:0/0")
    turns = page.get_by_role("article")
    expect(turns.nth(0)).to_contain_text(">" * 3_900)
    expect(turns.nth(1)).to_contain_text("list")
    last = turns.nth(2)
    expect(last.locator(".arguments dd")).to_have_text("[" * 1_900 + "]" * 1_900)
    last.get_by_role("button", name="Show all 190,013 characters").click()
    expect(last.locator(".ansi")).to_have_count(0)
    expect(last.get_by_text("its end")).to_be_visible()


def test_of_a_text_that_is_too_long_to_lay_out_the_beginning_is_shown(stand: Stand, opened: Opened) -> None:
    """A log of ten million characters held the browser up for fifty seconds."""
    stand.submit("longest", "first", [("long", tale([scene("y" * 30_000)]))], n=1)
    stand.closed("longest", 1)
    page = opened("trajectories/longest:first-0:0/0")

    def longer(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("y" * 30_000, "y" * 600_000))

    page.route("**/turns?*full=true*", longer)
    page.get_by_role("button", name="Show all 30,000 characters").click()
    turn = page.get_by_role("article").first
    expect(turn).to_contain_text("the first 500,000 of")
    assert page.evaluate("document.querySelector('article .block').textContent.length") < 501_000


def test_every_file_of_the_page_forbids_what_is_not_its_own(stand: Stand) -> None:
    files = Path(__file__).parents[2] / "api" / "ui"
    paths = [path.relative_to(files).as_posix() for path in files.rglob("*.*") if path.suffix not in {".py", ".pyc"}]
    for path in ["", *paths]:
        answer = httpx.get(f"{stand.url}/ui/{path}", trust_env=False)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = httpx.get(f"{stand.url}/ui/{path}", headers={"If-None-Match": answer.headers["etag"]}, trust_env=False)
        assert again.status_code == 304
    assert "<script>" not in httpx.get(f"{stand.url}/ui/", trust_env=False).text
    assert httpx.get(f"{stand.url}/ui/../app.py", trust_env=False).status_code == 404


def test_with_tokens_the_page_asks_for_one_and_shows_its_tenant_alone(
    stand: Stand, opened: Opened, tmp_path: Path
) -> None:
    stand.submit("mine", "first", [("count-1", counted())], n=2)
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    url = stand.start_api("api-tokens", "--tokens", str(tmp_path / "tokens.toml"))
    page = opened("runs/mine", url=url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    for token, title in (("wrong", "Sign in"), ("token-of-bob", "Not there")):
        page.get_by_label("Token of your tenant").fill(token)
        page.get_by_role("button", name="Sign in").click()
        shown(page)
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token of your tenant").fill("token-of-default")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Run mine")
    expect(page.locator("#live")).to_have_text("live")
    assert "token-of-default" not in page.url
    assert page.evaluate("localStorage.length") == 0
