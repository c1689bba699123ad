"""Takes the pictures of the documentation: `python -m tests.ui.screenshots DIRECTORY`.

The service is real, and so are its states, times and tokens. What the agents say and what their tools answer is
written here, and a fake backend samples the tokens.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

from tests.ui.conftest import shown
from tests.ui.stand import CHROMIUM, Stand, call, scene, tale

HOURS_MS: Final = 3_600_000
PROMPT: Final = (
    "You are in a checkout of the package `ledger`. The test tests/test_totals.py::test_rounding fails. "
    "Find the fault, fix it, and run the tests.\n"
)
MOST_BYTES: Final = 200_000
Bash = dict[str, Any]


def bash(command: str, result: str, **more: Any) -> Bash:
    return call("execute_bash", f'{{"command": "{command}"}}', result, **more)


def solved(pause_ms: int = 0) -> list[dict[str, Any]]:
    failing = "E   assert Decimal('10.01') == Decimal('10.00')\n1 failed, 23 passed in 0.41s\n"
    source = "def total(lines):\n    return round(sum(line.amount for line in lines), 2)\n"
    return [
        scene("I run the failing test first, to see what it says.",
              bash("pytest -q tests/test_totals.py", failing, ok=False, seconds=1.31), tokens=48, given=64),
        scene("It rounds the sum. Totals are to be rounded line by line. I look at the function.",
              bash("sed -n 1,40p ledger/totals.py", source, seconds=0.04), tokens=40, given=40),
        scene("I round each amount before the sum.", bash("sed -i 's/line.amount for/round(line.amount, 2) for/' "
              "ledger/totals.py && pytest -q", "24 passed in 0.39s\n", seconds=1.24), tokens=56, given=24,
              pause_ms=pause_ms),
        scene("Every test passes: totals are rounded line by line now.", tokens=24),
    ]  # fmt: skip


def missed() -> list[dict[str, Any]]:
    return [
        scene("The test expects 10.00. I change what it expects.",
              bash("sed -i 's/10.00/10.01/' tests/test_totals.py && pytest -q", "24 passed in 0.40s\n", seconds=1.2),
              tokens=44, given=24),
        scene("The tests pass.", tokens=12),
    ]  # fmt: skip


def fill(stand: Stand) -> None:
    """One batch that is done, and one that is under way."""
    mixed = tale(solved(), missed(), solved(), missed(), prompt=PROMPT, rewards=(1.0, 0.0, 1.0, 0.0))
    stand.submit("ledger-rl", "step-41", [(f"ledger-{number}", mixed) for number in range(3)], n=8)
    stand.closed("ledger-rl", 3)
    stand.version(2)
    stand.announce(2)
    hard = {**tale(missed(), prompt=PROMPT, rewards=(0.0,)), "judged": True}
    slow = tale(solved(HOURS_MS), missed(), prompt=PROMPT, rewards=(1.0, 0.0))
    twice = tale(solved(3_000), missed(), prompt=PROMPT, rewards=(1.0, 0.0))
    tasks = [(f"ledger-{7 * number + 11}", hard if number % 3 == 2 else mixed) for number in range(8)]
    tasks = [("ledger-3", twice), *tasks, *((f"ledger-{number}", slow) for number in (91, 95, 96))]
    dapo = {"target_groups": 12, "surplus": "ordered"}
    stand.submit("ledger-rl", "step-42", tasks, n=8, dapo=dapo)
    twice_at = "jobs/ledger-rl:step-42-0:0"
    stand.until(lambda: stand.get(twice_at)["stage"] == "run", "a job that sees two versions runs")
    stand.version(3)
    stand.announce(3)
    stand.closed("ledger-rl", 3 + 9)
    stand.submit("ledger-eval", "after-41", [("held-out-1", slow), ("held-out-2", mixed)], n=4, purpose="eval")
    stand.closed("ledger-eval", 1)


PAGES: Final = {
    "overview": "", "run": "runs/ledger-rl", "batch": "batches/ledger-rl:step-42",
    "group": "groups/ledger-rl:step-42-0", "job": "jobs/ledger-rl:step-42-0:0",
    "trajectory": "trajectories/ledger-rl:step-42-0:0/0", "compare": "compare/ledger-rl:step-42-0/0,1",
    "backends": "backends", "charts": "charts/ledger-rl/step", "failures": "failures/ledger-rl",
}  # fmt: skip
DASHBOARD: Final = (
    ("queues", "queues", "eval"), ("jobs", "jobs/eval/finished/10/desc/1", "ledger-rl"),
    ("workers", "workers", "run-n0"),
)  # fmt: skip
DARK: Final = ("overview", "trajectory")


def take(browser: Browser, stand: Stand, directory: Path) -> None:
    for scheme, names in (("light", tuple(PAGES)), ("dark", DARK)):
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 400})  # type: ignore[arg-type]
        for name in names:
            page = context.new_page()
            page.goto(f"{stand.url}/ui/#/{PAGES[name]}")
            shown(page)
            prepare(page, stand, name)
            keep(page, directory / f"ui-{name}{'-dark' if scheme == 'dark' else ''}.png", full=True)
            page.close()
        context.close()
    context = browser.new_context(viewport={"width": 360, "height": 740}, device_scale_factor=2)
    page = context.new_page()
    page.goto(f"{stand.url}/ui/")
    shown(page)
    keep(page, directory / "ui-small.png", full=False)
    context.close()
    if importlib.util.find_spec("rq_dashboard") is not None:
        take_dashboard(browser, stand, directory)


def take_dashboard(browser: Browser, stand: Stand, directory: Path) -> None:
    """rq-dashboard beside the same service, once it has caught up."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(90_000)
    page = context.new_page()
    address = stand.start_dashboard()
    page.goto(address)  # the token in it becomes a cookie
    for name, path, row in DASHBOARD:
        page.goto(f"{address.partition('/?')[0]}/0/view/{path}")
        page.locator("tbody tr", has_text=row).first.wait_for()
        keep(page, directory / f"rq-dashboard-{name}.png", full=True)
    context.close()


def keep(page: Page, path: Path, *, full: bool) -> None:
    page.screenshot(path=path, full_page=full, animations="disabled")
    size = path.stat().st_size
    print(f"{path} {size // 1024} KiB")
    assert size <= MOST_BYTES, f"{path} has {size} bytes; at most {MOST_BYTES} are wanted"


def prepare(page: Page, stand: Stand, name: str) -> None:
    if name == "trajectory":
        for number in (1, 2):
            page.get_by_role("button", name="Tokens and log").nth(number).click()
            page.locator(".tokens").nth(number - 1).wait_for()
        # What is above the part that is seen is not laid out, and would be blank in a picture of all.
        page.evaluate(
            "document.querySelectorAll('.turn, .prompt').forEach((e) => e.style.contentVisibility = 'visible')"
        )
    if name == "failures":
        page.get_by_role("region", name="What graders said").get_by_role("button").first.click()
        page.get_by_role("status").filter(has_text="votes").wait_for()
    if name == "overview":
        page.locator("#live", has_text="live").wait_for()
        batch = f"seen-{len(stand.get('runs/ledger-eval/batches')['batches'])}"
        held_out = tale(missed(), prompt=PROMPT, rewards=(0.0,))
        stand.submit("ledger-eval", batch, [("held-out-3", held_out)], n=2, purpose="eval")
        page.get_by_role("region", name="Newest events").get_by_text("completed").nth(1).wait_for()


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pq") as name, sync_playwright() as playwright:
        stand = Stand(Path(name), slots=64, backends=3)
        try:
            stand.start()
            fill(stand)
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), chromium_sandbox=False)
            take(browser, stand, directory)
            browser.close()
        finally:
            stand.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
