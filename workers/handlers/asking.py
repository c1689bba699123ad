"""One question to the agent, as most families ask it: options of the payload, the loop, the answer."""

from collections.abc import Sequence

import msgspec

from workers.agent.hermes import Message
from workers.agent.loading import policy_renderer
from workers.agent.loop import Reply, run_agent
from workers.agent.pictures.messages import attached
from workers.agent.result import AgentResult
from workers.agent.tools import Tool, offered, select
from workers.handler import JobView, Run
from workers.handlers.rows import fitting

OPTIONS = ("tools", "system", "examples", "tell_budget")  # the payload fields that `Options` reads


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of how the agent is asked."""

    tools: bool | list[str] = True  # or the names of those to offer
    system: str | None = None  # replaces the family's own system message
    examples: list[Message] = []  # worked turns, between the system message and the question
    tell_budget: bool = False  # every tool's answer ends with what is left


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Tools that a family offers, and the system message with tools and without."""

    tools: Sequence[str]
    with_tools: str
    without_tools: str


def options_of(job: JobView) -> Options:
    """Raises `BadRow`."""
    return fitting({name: job.payload[name] for name in OPTIONS if name in job.payload}, Options)


def tools_of(job: JobView, family: Sequence[str]) -> list[str]:
    """Names of the tools for this job: what its task wants, as far as the batch allows it."""
    return offered(family, options_of(job).tools, job.tools)


async def ask(
    context: Run,
    prompts: Prompts,
    question: str | Sequence[Message],
    *,
    more: Sequence[Tool] = (),
    reply: Reply | None = None,
    resumes: bool = True,
) -> AgentResult:
    """Asks a question, or continues from messages. `more`: tools that only this job has. `reply`: as `run_agent`'s.

    Without `resumes` nothing is logged: for a second question, and for a `reply` that changes the sandbox.
    """
    job, options = context.job, options_of(context.job)
    tools = [*select(tools_of(job, prompts.tools)), *more]
    system = options.system or (prompts.with_tools if tools else prompts.without_tools)
    return await run_agent(
        policy=context.policy,
        renderer=await policy_renderer(),
        messages=[
            *([Message(role="system", content=system)] if system else []),
            *options.examples,
            *attached([Message(role="user", content=question)] if isinstance(question, str) else question),
        ],
        tools=tools,
        sandbox=context.sandbox,
        sampling=job.sampling,
        sample=job.sample,
        deadline=context.clock,
        tell_budget=options.tell_budget,
        reply=reply,
        log=context.log if resumes else None,
    )
