"""Forms in which a program is handed in: a block of the final message, or a file in the sandbox."""

from sandbox.errors import SandboxError
from sandbox.protocol import Sandbox
from workers.agent.result import AgentResult
from workers.handler import SandboxLost
from workers.handlers.answers import python_block

SOLUTION = "/workspace/solution.py"
MAX_SOLUTION_BYTES = 64 << 10


async def handed_in(result: AgentResult, sandbox: Sandbox | None) -> str | None:
    """The last ```python block of the answer, else the file. Raises `SandboxLost`: the policy has acted."""
    solution = python_block(result.answer)
    if solution is None and sandbox is not None:
        try:
            read = await sandbox.run(["head", "-c", str(MAX_SOLUTION_BYTES), SOLUTION])
        except SandboxError as error:
            raise SandboxLost(
                f"{SOLUTION} cannot be read: {type(error).__name__}: {error}", result.trajectory
            ) from error
        return read.stdout.decode("utf-8-sig", errors="replace") if read.exit_code == 0 else None
    return solution


def fault_of(solution: object) -> str | None:
    """Why there is nothing to test, if so."""
    if not isinstance(solution, str) or not solution.strip():
        return f"no solution: neither a ```python block nor {SOLUTION}"
    if len(solution) > MAX_SOLUTION_BYTES:
        return f"the solution has more than {MAX_SOLUTION_BYTES} characters"
    return None
