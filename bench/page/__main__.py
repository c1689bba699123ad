"""How long the web page's main thread is blocked by a trajectory of 50 turns and 32,000 tokens, and by 10,000 groups.

    python -m bench.page [--rounds 5]

A real Chromium on a real service. Each round opens the trajectory again, shows the tokens of its ten turns, reads one
text whole, and goes to the last page. What counts is the longest task of the main thread that the browser itself tells
of (tasks under 50 ms it does not tell: they count as 0). Then `bench.page.many`, as often.
"""

import argparse
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench.page import many
from bench.report import goal, goal_lines, spread, write
from tests.ui.conftest import shown
from tests.ui.stand import CHROMIUM, Stand
from tests.ui.told import epic

WATCH = """
window.longest = 0;
new PerformanceObserver(list => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({type: 'longtask', buffered: true});
"""


def once(browser: Browser, url: str) -> tuple[float, float]:
    """Milliseconds until the first turns are shown, and of the longest task of the whole visit."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(WATCH)
    began = time.monotonic()
    page.goto(f"{url}/ui/#/trajectories/epic:first-0:0/0")
    shown(page)
    opened_ms = (time.monotonic() - began) * 1000
    # By selectors: looking for roles and names is work of the main thread too, and would be counted.
    page.evaluate("document.querySelectorAll('.turn button[aria-expanded]').forEach(button => button.click())")
    page.wait_for_function("() => document.querySelectorAll('.tokens').length === 10")
    page.locator(".turn .block + p > button").first.click()
    page.locator(".pager a:last-child").first.click()
    page.locator("#turn-49").wait_for()
    longest = float(page.evaluate("new Promise(done => setTimeout(() => done(window.longest), 200))"))
    context.close()
    return opened_ms, longest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="pq") as name, sync_playwright() as playwright:
        stand = Stand(Path(name))
        try:
            stand.start()
            stand.submit("epic", "first", [("epic", epic())], n=1)
            stand.closed("epic", 1)
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), chromium_sandbox=False)
            found = [once(browser, stand.url) for _ in range(rounds)]
            many.write_groups(Path(name) / "r.out.jsonl")
            with many.viewed(Path(name) / "r.out.jsonl") as url:
                visits = [many.visits(browser, url, WATCH) for _ in range(rounds)]
            browser.close()
        finally:
            stand.stop()
    opened, longest = ([each[place] for each in found] for place in (0, 1))
    print(f"first turns shown after {spread(opened).median:.0f} ms (median of {rounds})")
    for what in visits[0]:
        took = spread([each[what][0] for each in visits]).median
        print(f"10,000 groups, {what}: {took:.2f} s, longest task {max(each[what][1] for each in visits):.0f} ms")
    goals = {
        "longest task of the main thread, ms, of all rounds": goal(max(longest), "<= 200"),
        "the same with 10,000 groups": goal(max(task for each in visits for _, task in each.values()), "<= 100"),
    }
    print(goal_lines(goals))
    print(write("page", goals, {"opened_ms": spread(opened), "longest_task_ms": spread(longest)}))


if __name__ == "__main__":
    main()
