"""Runs an installed verifiers environment: its tasks ask, our agent answers, and its own rewards score.

Its rewards read what the policy wrote, so they run in a confined process. One that raises over the policy's answer
alone gives 0; one that takes no answer at all gives no reward.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from workers.agent.hermes import Message
from workers.handler import Eval, Init, JobView, Prepared, Ran, Run, Schema, Score
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.blame import CANARIES, Blamed, blaming, reply_of
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.rows import fitting
from workers.handlers.verifiers.environments import EnvironmentPlace, Environments, conversation
from workers.handlers.verifiers.scoring import ScoringRequest, VerifiersScore

TOOLS = ("execute_bash", "execute_ipython_cell", "str_replace_editor", "think", "finish")
FINISH = "Use the tools where they help, then call finish with the whole answer."


class Verifiers:
    """`{env_id, index, config?}`. Without `tools` in the payload the environment's prompt is all that is said."""

    data_sources: Sequence[str] = ("verifiers",)
    schema = Schema(required=("env_id", "index"), optional=("config", *OPTIONS))
    needs_sandbox = True  # if a task's payload names tools
    needs = ("verifiers",)

    def __init__(self) -> None:
        self._environments = Environments()
        self._scorer = Forks("workers.handlers.verifiers.scoring", ForkLimits(cpu_s=30))

    async def init(self, context: Init) -> Prepared:
        begun = conversation(await asyncio.to_thread(self._environments.task, _place(context.job)))
        sandbox = (await context.sandbox()).handle if tools_of(context.job, _tools(context.job)) else None
        return Prepared(carry={"begun": msgspec.to_builtins(begun)}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        begun = msgspec.convert(context.carry["begun"], list[Message])
        system = "\n\n".join(each.content for each in begun if each.role == "system")
        prompts = Prompts(tools=_tools(context.job), with_tools=f"{system}\n\n{FINISH}".strip(), without_tools=system)
        result = await ask(context, prompts, [each for each in begun if each.role != "system"])
        said = [*result.exchanged, Message(role="assistant", content=result.answer)]
        export = {"said": msgspec.to_builtins(said)}
        return Ran(trajectory=result.trajectory, export=export, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        clock, place = EvalClock.of(context), _place(context.job)
        task = await asyncio.to_thread(self._environments.task, place)
        request = ScoringRequest(
            place=place,
            data=task.data.model_dump(mode="json"),
            begun=conversation(task),
            said=msgspec.convert(context.export["said"], list[Message]),
            truncated=context.truncated,
        )
        what = f"the environment {place.env_id}"
        reply = await blaming(self._scored, request, _canaries(request), what, clock)
        if isinstance(reply, Blamed):
            return Score(reward=0.0, note=f"{what} cannot score the answer: {reply.reason}")
        return Score(reward=reply.reward, parts=reply.parts)

    async def aclose(self) -> None:
        """Ends the process that scores."""
        await asyncio.to_thread(self._scorer.close)

    async def _scored(self, request: ScoringRequest, given: AskTime) -> VerifiersScore:
        return await reply_of(self._scorer, VerifiersScore, request, given)


def _tools(job: JobView) -> Sequence[str]:
    return TOOLS if "tools" in job.payload else ()


def _canaries(request: ScoringRequest) -> list[ScoringRequest]:
    """The same task after one short answer: the right one, where the task's data names it, then common ones."""
    right = request.data.get("answer")
    answers = [*([str(right)] if right is not None else []), *CANARIES]
    said = [[Message(role="assistant", content=answer)] for answer in answers]
    return [msgspec.structs.replace(request, said=each, truncated=False) for each in said]


def _place(job: JobView) -> EnvironmentPlace:
    wanted = {name: job.payload[name] for name in ("env_id", "index", "config") if name in job.payload}
    return fitting(wanted, EnvironmentPlace)
