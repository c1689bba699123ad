"""The reward is 1 if all cases pass; `passed` says how many do."""

import json
import subprocess
import sys

CASES = [
    ([], []),
    ([(1, 2)], [(1, 2)]),
    ([(1, 3), (2, 5)], [(1, 5)]),
    ([(1, 2), (3, 4)], [(1, 4)]),
    ([(1, 2), (2, 4)], [(1, 4)]),
    ([(1, 9), (2, 3)], [(1, 9)]),
    ([(7, 8), (1, 2)], [(1, 2), (7, 8)]),
]
CALL = "import json, sys; sys.path.insert(0, '/app'); import intervals; print(json.dumps(intervals.merge(%r)))"


def passes(given, wanted):
    """In a process of its own, which sees neither the other cases nor what is wanted."""
    done = subprocess.run([sys.executable, "-c", CALL % (given,)], capture_output=True, timeout=5)
    try:
        return [tuple(each) for each in json.loads(done.stdout)] == wanted
    except (ValueError, TypeError):
        return False


passed = sum(passes(given, wanted) for given, wanted in CASES)
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"reward": int(passed == len(CASES)), "passed": passed / len(CASES)}, file)
