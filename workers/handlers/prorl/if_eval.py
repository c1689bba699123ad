"""Instructions that a program can check, as IFEval has them: 1 if the answer follows all of them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.schema.images.rows import FIELD
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.answers import MAX_ANSWER_CHARS
from workers.handlers.blame import Blamed, blaming, reply_of
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import Forks
from workers.handlers.prorl.instructions import Followed, Instructed
from workers.handlers.prorl.single_turn import answer_once, messages_of
from workers.handlers.rows import ANSWERS, QUESTIONS, BadRow, fitting, parsed


class InstructionList(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of IFEval: the names of instructions, and the arguments of each, null where it has none."""

    instruction_id_list: list[str]
    kwargs: list[dict[str, Any] | None]


class IfEval:
    """`{prompt, reward_model: {ground_truth: {instruction_id_list, kwargs}}}`, or a row of IFEval."""

    data_sources: Sequence[str] = ("if_eval",)
    schema = Schema(
        optional=(*QUESTIONS, FIELD), sealed=(*ANSWERS, *InstructionList.__struct_fields__), seals_rest=True
    )
    needs_sandbox = False
    needs = ("if_verifiable", "punkt")

    def __init__(self) -> None:
        self._checks = Forks("workers.handlers.prorl.instructions")

    async def init(self, context: Init) -> Prepared:
        messages_of(context.job.payload)
        return Prepared()

    async def run(self, context: Run) -> Ran:
        result = await answer_once(context)
        return Ran(trajectory=result.trajectory, export={"answer": result.answer})

    async def eval(self, context: Eval) -> Score:
        clock, listed = EvalClock.of(context), _listed(context.sealed)
        answer = str((context.export or {}).get("answer") or "")
        if not answer.strip():
            return Score(reward=0.0, note="no answer")
        if len(answer) > 4 * MAX_ANSWER_CHARS:
            return Score(reward=0.0, note=f"the answer has more than {4 * MAX_ANSWER_CHARS} characters")
        said = Instructed(
            answer=answer,
            prompt=messages_of(context.job.payload)[-1].content,
            names=listed.instruction_id_list,
            arguments=[each or {} for each in listed.kwargs],
        )
        canary = msgspec.structs.replace(said, answer="A plain answer.")
        found = await blaming(self._followed, said, [canary], "IFEval", clock)
        if isinstance(found, Blamed):
            return Score(reward=0.0, note=f"the answer cannot be checked: {found.reason}")
        parts = {"followed": float(sum(found.followed)), "instructions": float(len(found.followed))}
        failed = [name for name, ok in zip(said.names, found.followed, strict=True) if not ok]
        note = f"not followed: {', '.join(dict.fromkeys(failed))}" if failed else None
        return Score(reward=float(not failed), parts=parts, note=note)

    async def aclose(self) -> None:
        """Ends the process of the checks."""
        await asyncio.to_thread(self._checks.close)

    async def _followed(self, request: Instructed, given: AskTime) -> Followed:
        found = await reply_of(self._checks, Followed, request, given)
        if found.bad_row is not None:
            raise BadRow(found.bad_row)
        return found


def _listed(sealed: Mapping[str, Any]) -> InstructionList:
    """Raises `BadRow`."""
    model = parsed(sealed.get("reward_model"))
    truth = parsed(model.get("ground_truth")) if isinstance(model, Mapping) else None
    fields = truth if isinstance(truth, Mapping) else sealed
    names = [name for name in InstructionList.__struct_fields__ if name in fields]
    found = fitting({name: parsed(fields[name]) for name in names}, InstructionList)
    if not found.instruction_id_list or len(found.instruction_id_list) != len(found.kwargs):
        named, given = len(found.instruction_id_list), len(found.kwargs)
        raise BadRow(f"the row names {named} instructions and has arguments of {given}: one object each, at least one")
    return found
