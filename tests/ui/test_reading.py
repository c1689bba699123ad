"""A trajectory as a researcher reads it: rendered texts, tokens as text, keys, links, any two samples side by side."""

import json
import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import PATIENCE_MS, Opened, shown
from tests.ui.stand import Stand, call, scene, tale

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]
expect.set_options(timeout=PATIENCE_MS)
SAID = """I look **first**, with `ls`:

```python
print("two\\nlines")
```

| file | lines |
|---|---|
| a | 1 |

[the docs](https://example.org/a) and [a trap](javascript:alert(1)) <b>not bold</b>
"""
COMMAND = "cat <<'EOF' > a.py\nprint(1)\nEOF"
RESULT = "\x1b[1;31mFAILED\x1b[0m tests\x1b[2K\n10 %\r20 %\r30 %\n" + "".join(
    f"line {number}\n" for number in range(40)
)
DIFF = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-print(1)\n+print(2)\n"


@pytest.fixture(scope="module")
def job(stand: Stand) -> str:
    """Twelve turns: the first with all that is rendered, the twelfth far away."""
    arguments = json.dumps({"command": COMMAND, "timeout": 5})
    first = scene(SAID, call("execute_bash", arguments, RESULT, ok=False), call("execute_bash", "{}", DIFF))
    stand.submit("reading", "first", [("read", tale([first, *(scene(f"Turn {n}.") for n in range(2, 13))]))], n=2)
    stand.submit("reading", "second", [("other", tale([scene("Another one.")]))], n=1)
    stand.closed("reading", 2)
    return "reading:first-0:1"


def test_texts_are_rendered_and_raw_ones_are_a_button_away(opened: Opened, job: str) -> None:
    page = opened(f"trajectories/{job}/0")
    first = page.get_by_role("article").first
    expect(first.locator("strong")).to_have_text("first")
    expect(first.locator(".markdown pre.code")).to_have_text('print("two\\nlines")')
    expect(first.get_by_role("row")).to_have_count(2)
    expect(first.locator(".markdown a")).to_have_attribute("href", "https://example.org/a")
    expect(first).to_contain_text("[a trap](javascript:alert(1)) <b>not bold</b>")
    expect(first.locator(".arguments dd").first).to_have_text(COMMAND)
    red = first.locator(".ansi")
    expect(red).to_have_text("FAILED")
    expect(red).to_have_attribute("data-ink", "red")
    expect(first).to_contain_text("30 %")
    expect(first).not_to_contain_text("20 %")
    expect(first.locator('.line[data-diff="more"]')).to_have_text("+print(2)\n")
    expect(first).not_to_contain_text("line 39")
    first.get_by_role("button", name="Show all 42 lines").click()
    expect(first).to_contain_text("line 39")
    page.get_by_role("button", name="Raw texts").click()
    expect(first.locator("pre").first).to_have_text(SAID)
    expect(first.locator("pre").nth(1)).to_have_text(json.dumps({"command": COMMAND, "timeout": 5}))
    assert first.locator("strong").count() == 0


def test_keys_go_through_turns_and_a_turn_has_an_address(opened: Opened, job: str) -> None:
    page = opened(f"trajectories/{job}/0")
    for key, turn in (("j", "turn-0"), ("j", "turn-1"), ("k", "turn-0")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == turn
    expect(page.get_by_role("navigation", name="Map of the trajectory").locator("[data-failed]")).to_have_text(["1"])
    page.keyboard.press("e")
    expect(page.get_by_role("article").first).to_contain_text("line 39")
    expect(page.locator("details.prompt")).to_have_attribute("open", "")
    page.get_by_role("link", name="Turn 12", exact=True).first.click()
    expect(page.locator("#turn-11")).to_be_focused()
    assert page.url.endswith("/10/11")
    page.reload()
    shown(page)
    expect(page.locator("#turn-11")).to_be_focused()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("next turn, row or hit")
    keys.get_by_role("button", name="Switch keys off").click()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Trajectory of {job}")
    page.keyboard.press("?")
    keys.get_by_role("button", name="Switch keys on").click()
    keys.get_by_role("button", name="Close").click()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Words")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Words")).to_be_focused()
    page.goto(page.url.partition("#")[0] + f"#/trajectories/{job}/0")
    expect(page.get_by_role("article").first).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {job}")


def test_any_two_samples_are_compared(opened: Opened, job: str, stand: Stand) -> None:
    page = opened(f"trajectories/{job}/0")
    page.get_by_role("button", name="Choose for comparison").click()
    page.goto(f"{stand.url}/ui/#/trajectories/reading:second-0:0/0")
    page.get_by_role("link", name=f"Compare with {job}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare two samples")
    table = page.get_by_role("region", name="Samples side by side")
    expect(table.get_by_role("columnheader").nth(1)).to_contain_text("task read, batch first, versions 1")
    rows = table.locator(".sides > tbody > tr")
    cells = rows.nth(0).locator("> td")
    expect(cells.nth(0)).to_contain_text("I look first")
    expect(cells.nth(1)).to_contain_text("Another one.")
    expect(rows.nth(1).locator("> td").nth(1)).to_have_text("ended before")


def test_a_trajectory_is_downloaded_whole(opened: Opened, job: str, stand: Stand) -> None:
    page = opened(f"trajectories/{job}/0")
    with page.expect_download() as told:
        page.get_by_role("button", name="Download as JSON").click()
    assert told.value.suggested_filename == "reading_first-0_1.json"
    assert json.loads(Path(told.value.path()).read_text()) == stand.get(f"jobs/{job}/trajectory")


def test_a_text_is_copied_as_it_was_written(opened: Opened, job: str) -> None:
    page = opened(f"trajectories/{job}/0", permissions=["clipboard-read", "clipboard-write"])
    first = page.get_by_role("article").first
    for place, written in ((0, SAID), (1, json.dumps({"command": COMMAND, "timeout": 5})), (2, RESULT)):
        button = first.locator(".copy").nth(place)
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == written


def test_tokens_are_text_where_the_service_has_the_vocabulary(
    opened: Opened, job: str, stand: Stand, tmp_path: Path
) -> None:
    pieces = {f"Ġw{number}": number for number in range(60_000)}
    decoder = {"type": "ByteLevel"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "BPE", "vocab": pieces}, "decoder": decoder})
    )
    argv = ["env", f"PRORL_TOKENIZER={tmp_path}", sys.executable, "-m", "api", "--port", "0", "--open"]
    url = stand.listening("api-words", argv)
    page = opened(f"live/{job}", url=url)  # a job that has ended has the same turns
    said = page.get_by_role("article").nth(1).locator(".text").first
    expect(said).to_contain_text(re.compile(r"^\s*(w\d+ ){15}w\d+$"))
    page = opened(f"trajectories/{job}/0", url=url)
    turn = page.get_by_role("article").nth(1)
    turn.get_by_role("button", name="Tokens and log-probabilities").click()
    told = stand.get(f"jobs/{job}/tokens", start=24, limit=24)
    words = turn.locator(".word")
    expect(words).to_have_text([f" w{number}" for number in told["ids"]], use_inner_text=False)
    heats = [each.get_attribute("data-heat") for each in words.all()]
    limits = (-0.1, -0.5, -1, -2, -4)
    assert heats == [None if each is None else str(sum(each < limit for limit in limits)) for each in told["logprobs"]]
    assert re.match(rf"id {told['ids'][0]}, log-probability", words.first.get_attribute("title") or "")
    turn.get_by_role("button", name="As ids").click()
    expect(turn.locator(".token").first).to_contain_text(str(told["ids"][0]))
