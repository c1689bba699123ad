"""The end of a test run: what was left out for want of something, and the command that installs it."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

COMMAND = re.compile(r"`(make [a-z-]+)`")
ALL = "`CI=1 make test` installs all of this first (3.3 GB) and leaves out nothing that it can install."


def left_out(reasons: Iterable[str]) -> list[str]:
    """Lines for the reasons of skipped tests, those of one `make` command together, the most first."""
    counts: Counter[str] = Counter()
    said: defaultdict[str, set[str]] = defaultdict(set)
    for reason in reasons:
        found = COMMAND.search(reason)
        key = found[1] if found else reason
        counts[key] += 1
        said[key].add(reason)
    lines = []
    for key, count in counts.most_common():
        reason = min(said[key]).removeprefix("Skipped: ")
        more = f" (and {len(said[key]) - 1} like it)" if len(said[key]) > 1 else ""
        lines.append(f"{count:4} {reason}{more}")
    return [*lines, ALL] if any(key.startswith("make ") for key in counts) else lines
