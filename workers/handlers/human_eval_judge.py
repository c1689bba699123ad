"""Runs the tests of one HumanEval problem against a solution. The text of this file is what runs in the sandbox.

Standard library only. Standard input holds one JSON object; the tests and the nonce are in it and nowhere else. The
solution runs in another process that gets neither, and what it returns crosses as plain data: it cannot end the tests
early, read them, or return an object that claims to equal everything. The nonce is printed after the last test.
"""

from __future__ import annotations  # Python 3.8 may run this

import json
import os
import subprocess
import sys
from typing import Any

PR_SET_DUMPABLE = 4
CANNOT_JUDGE = 3  # exit code: this Python lacks something; the solution is not to blame

# A process under any Landlock ruleset may not trace one outside of it: neither the judge nor the sandbox's own server,
# by memory or by descriptors. The ruleset itself only forbids making block devices. Kernels before 5.13 have none.
SERVE = r"""
import ctypes, json, os, struct, sys
libc = ctypes.CDLL(None)
ruleset = libc.syscall(444, struct.pack("Q", 1 << 11), 8, 0)
if ruleset >= 0 and libc.prctl(38, 1, 0, 0, 0) == 0:
    libc.syscall(446, ruleset, 0)
    os.close(ruleset)
del ctypes, struct, libc, ruleset
calls, results = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
given = json.loads(calls.readline())
space = {"__name__": "solution"}
for part in given["sources"]:
    exec(compile(part, "solution.py", "exec"), space)
for line in calls:
    arguments, named = json.loads(line)
    try:
        value = space[given["entry_point"]](*unpack(arguments), **unpack(named))
        answer = {"value": pack(value)}
    except Exception as error:
        answer = {"error": type(error).__name__ + ": " + str(error)[:300]}
    results.write(json.dumps(answer) + "\n")
    results.flush()
"""
MAX_LINE_BYTES = 1 << 26  # of what a call gave
codec: dict[str, Any] = {"__name__": "plain"}


class SolutionFailed(Exception):
    """A call gave no value; the message says why."""


class Solution:
    """The solution's function, called in its own process."""

    def __init__(self, program: str, sources: list[str], entry_point: str) -> None:
        calls, calls_in = os.pipe()
        results_out, results = os.pipe()
        command = [sys.executable, "-I", "-c", program, str(calls), str(results)]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, pass_fds=(calls, results), start_new_session=True
        )
        os.close(calls)
        os.close(results)
        self.calls, self.results = os.fdopen(calls_in, "w"), os.fdopen(results_out, "rb")
        self.send({"sources": sources, "entry_point": entry_point})

    def send(self, value: object) -> None:
        try:
            self.calls.write(json.dumps(value) + "\n")
            self.calls.flush()
        except BrokenPipeError:
            raise SolutionFailed("the solution's process ended before its tests did") from None

    def __call__(self, *arguments: object, **named: object) -> Any:
        self.send([codec["pack"](arguments), codec["pack"](named)])
        line = self.results.readline(MAX_LINE_BYTES)
        if not line:
            raise SolutionFailed("the solution's process ended before its tests did")
        answer = json.loads(line)
        if "error" in answer:
            raise SolutionFailed(answer["error"])
        return codec["unpack"](answer["value"])


def seal() -> None:
    """From here on no other process of this user may read this one's memory or descriptors."""
    try:
        import ctypes
    except ImportError:
        raise SystemExit(CANNOT_JUDGE) from None
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
    """Exit code 0 and the nonce: every test passed. 1 and a reason: one did not."""
    seal()
    given = json.loads(sys.stdin.readline())
    exec(given["codec"], codec)  # noqa: S102 -- our own text, which both processes run
    solution = Solution(given["codec"] + SERVE, given["sources"], given["entry_point"])
    try:
        space: dict[str, Any] = {"__name__": "tests"}
        exec(compile(given["prompt"], "prompt.py", "exec"), space)  # noqa: S102 -- the data set's own text
        for part in given["reference"]:  # some tests compare the solution with the reference, by its name
            exec(compile(part, "reference.py", "exec"), space)  # noqa: S102
        if not given["reference"]:
            space[given["entry_point"]] = solution
        exec(compile(given["test"], "test.py", "exec"), space)  # noqa: S102
        space["check"](solution)
    except Exception as error:
        print(type(error).__name__ + ": " + str(error)[:300])
        code = 1
    else:
        print(given["nonce"])
        code = 0
    finally:
        solution.process.kill()
        solution.process.wait()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
