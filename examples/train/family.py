"""The task family of the training example: a trail of notes in the files of a sandbox, to be followed with a shell."""

from collections.abc import Sequence

from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.asking import Prompts, ask
from workers.rehearsal.check import Example

PROMPTS = Prompts(tools=("execute_bash", "finish"), with_tools="", without_tools="")
CAT = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "cat %s"}}\n</tool_call>'
FINISH = '<tool_call>\n{"name": "finish", "arguments": {"message": "%s"}}\n</tool_call>'


class Trails:
    """`{question, notes, gold}`: only the sandbox knows where the trail leads, and only EVAL what is right."""

    data_sources: Sequence[str] = ("trails",)
    schema = Schema(required=("question", "notes", "gold"), sealed=("gold",))
    needs_sandbox = True
    resumes = True
    examples = (
        Example(
            payload={"question": "start 37", "notes": {"37": "not 18 to 52", "18": "nothing", "52": "gold 81"},
                     "gold": "81"},
            says=[CAT % "37", CAT % "52", FINISH % "81"],
        ),
    )  # fmt: skip

    async def init(self, context: Init) -> Prepared:
        sandbox = await context.sandbox()
        for name, note in context.job.payload["notes"].items():
            await sandbox.write_file(f"/workspace/{name}", f"{note}\n".encode())
        return Prepared(sandbox=sandbox.handle)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.job.payload["question"], resumes=self.resumes)
        return Ran(trajectory=result.trajectory, export=result.answer, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        found = (context.export or "").strip() == context.sealed["gold"]
        return Score(reward=float(found), note=None if found else "not the gold")


class Forgetful(Trails):
    """The same without a log of its turns: what a worker's death costs without it."""

    data_sources = ("trails-again",)
    resumes = False
