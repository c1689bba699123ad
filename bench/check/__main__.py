"""python -m bench.check: does the code spend more than the last release did?

Counts and ratios of a short run (three minutes) beside `bench/release.toml`. Exit status 1 when one rose by more than
the file allows, or could not be measured.
"""

import argparse
import sys
from pathlib import Path

from bench import measure
from bench.check import figures, release

NOISE = "CPU figures of a busy machine are noisy even as ratios: repeat it when the load is low."
ADVICE = """\
Every round, with the commands by name as `top_commands`, is in bench/out/check.json. Find the cause on the code of the
release and on this one with `python -m bench.queue --only ours,floor` or `python -m bench.sandbox --only calls`.
Record a rise only if the release gains something for it, with its reason in CHANGELOG.md: make check-bench RECORD=1"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=__doc__)
    parser.add_argument("--tools", type=Path, default=Path(".state"), help="filled by `make sandbox-tools`")
    parser.add_argument("--record", action="store_true", help="write bench/release.toml for a release")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    last, machine = release.read(), measure.describe_machine()
    found = figures.measured(options.tools.absolute())
    verdicts = release.judge(last, found)
    print(f"beside {last.of}\n{release.table(verdicts)}")
    load = f"load {machine['load_at_start']} to {measure.load()} on {machine['cores']} cores"
    refused = [each for each in verdicts if each.refused]
    if options.record:
        missing = [each.name for each in refused if each.measured is None]
        if missing:
            print(f"not recorded, because not measured: {', '.join(missing)}")
            return 1
        of = f"{measure.versions(['prorl-mq'])['prorl-mq']}, {measure.code()}"
        release.write(release.recorded(last, found, of=of, machine=f"{machine['cpu']}, {load}"))
        print(f"{release.FILE} is now of {of}; {load}")
        return 0
    for each in refused:
        print(f"{each.name}: {each.said}")
    print(f"{load}. {NOISE if measure.load() > float(machine['cores']) else ''}")
    if refused:
        print(ADVICE)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
