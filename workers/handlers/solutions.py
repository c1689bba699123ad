"""Forms in which a program is handed in: a block of the final message, or a file in the sandbox."""

from sandbox.protocol import Sandbox
from workers.handlers.answers import python_block

SOLUTION = "/workspace/solution.py"
MAX_SOLUTION_BYTES = 64 << 10


async def handed_in(answer: str, sandbox: Sandbox | None) -> str | None:
    """The last ```python block of the answer, else the file."""
    solution = python_block(answer)
    if solution is None and sandbox is not None:
        result = await sandbox.run(["head", "-c", str(MAX_SOLUTION_BYTES), SOLUTION])
        return result.stdout.decode(errors="replace") if result.exit_code == 0 else None
    return solution


def fault_of(solution: object) -> str | None:
    """Why there is nothing to test, if so."""
    if not isinstance(solution, str) or not solution.strip():
        return f"no solution: neither a ```python block nor {SOLUTION}"
    if len(solution) > MAX_SOLUTION_BYTES:
        return f"the solution has more than {MAX_SOLUTION_BYTES} characters"
    return None
