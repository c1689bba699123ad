"""Runs one attack and prints a line of JSON: whether it has done what it is named for, and words about it."""

from __future__ import annotations

import errno
import json
import sys

from sandbox.attack.inside.tools import Contained


def main() -> None:
    attack, facts = globals()[sys.argv[1]], json.loads(sys.argv[2])
    try:
        done, said = True, attack(facts) if attack.__code__.co_argcount else attack()
    except OSError as error:
        done, said = False, errno.errorcode.get(error.errno or 0, str(error))
    except Contained as error:
        done, said = False, str(error)
    print(json.dumps({"done": done, "said": said}))


if __name__ == "__main__":
    main()
