"""What the tests of the page fill the service with."""

from typing import Any

from tests.ui.stand import Stand, call, scene, tale

EVIL = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"


def counted() -> dict[str, Any]:
    """Odd samples are right, even ones are not."""
    wrong = [scene("I guess that there are three files.", reply="Guess again."), scene("Three.")]
    right = [
        scene("I look first.", call("execute_bash", '{"command": "ls | wc -l"}', "2\n")),
        scene("There are two files."),
    ]
    return tale(wrong, right)


def epic() -> dict[str, Any]:
    """Fifty turns of 32,000 tokens, with long texts."""
    long, warnings = "The answer needs another look. " * 300, "warning: unused\n" * 600
    script = [
        scene(f"{number}: {long}", call("execute_bash", '{"command": "make"}', f"{number} {warnings}"),
              tokens=512, given=128)
        for number in range(50)
    ]  # fmt: skip
    return tale(script, rewards=(1.0,))


def finished(stand: Stand, run: str, *, n: int = 2) -> None:
    """A batch of two groups that have closed."""
    stand.submit(run, "first", [("count-1", counted()), ("count-2", counted())], n=n)
    stand.closed(run, 2)


def pages(run: str) -> dict[str, str]:
    """The address of every kind of page, for a run that `finished` has made."""
    return {
        "overview": "", "runs": "runs", "run": f"runs/{run}", "batch": f"batches/{run}:first",
        "group": f"groups/{run}:first-0", "job": f"jobs/{run}:first-0:0",
        "trajectory": f"trajectories/{run}:first-0:1/0", "compare": f"compare/{run}:first-0/0,1",
        "backends": "backends", "list": f"lists/{run}/closed",
        "pair": f"pair/{run}:first-0:0/{run}:first-1:1/0", "live": f"live/{run}:first-0:1",
        "charts": f"charts/{run}", "explore": f"explore/{run}", "failures": f"failures/{run}",
        "missing": f"jobs/{run}:none:0",
    }  # fmt: skip
