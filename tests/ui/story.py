"""A task family for looking at: turns with written texts and tool calls, and tokens that a backend samples."""

import asyncio

import msgspec

from prorl_mq.schema.codec import compress, encode
from prorl_mq.schema.trajectory import Segment, Span, ToolCall, Trajectory, Turn
from prorl_mq.schema.turns import SCHEMA, CallResult, LoggedCompletion, TurnResults, pack_tokens
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score, TurnLog
from workers.inference.protocol import Completion


class Scene(msgspec.Struct, frozen=True):
    """One turn as it is written, and how many tokens stand for it and for what its tools answer."""

    text: str
    calls: list[ToolCall] = []
    tokens: int = 16
    given: int = 8
    pause_ms: int = 0
    reply: str = ""


class Tale(msgspec.Struct, frozen=True):
    """The payload of a task. Samples take the scripts and the rewards in turn; a reward of None fails the sample."""

    prompt: str
    scripts: list[list[Scene]]
    rewards: list[float]
    judged: bool = False  # by a judge that says what it was asked and how it voted


class Story:
    data_sources = ("story",)
    schema = Schema(required=("prompt", "scripts", "rewards"), optional=("judged",))
    needs_sandbox = False

    async def init(self, context: Init) -> Prepared:
        return Prepared(carry=context.job.index)

    async def run(self, context: Run) -> Ran:
        tale = msgspec.convert(context.job.payload, Tale)
        scenes = tale.scripts[context.carry % len(tale.scripts)]
        prompt = [(7 * place + context.carry) % 997 for place in range(len(tale.prompt) // 4 + 8)]
        ids, mask, logprobs, spans, turns = list[int](), list[int](), list[float | None](), list[Span](), list[Turn]()
        for number, scene in enumerate(scenes):
            done = await context.policy.generate(
                [*prompt, *ids], max_tokens=scene.tokens, temperature=1.0, seed=1000 * context.carry + number
            )
            await logged(context.log, len(prompt) + len(ids), done, scene)
            start = len(ids)
            turn = Turn(
                segment=0, prompt_tokens=len(prompt) + start, completion_tokens=len(done.ids),
                cached_tokens=done.cached_tokens, finish_reason=done.finish_reason, llm_seconds=done.seconds,
                text=scene.text, tool_calls=scene.calls, reply=scene.reply, started_seconds=0.5 * number,
            )  # fmt: skip
            turns.append(turn)
            end = start + len(done.ids)
            spans.append(Span(start=start, end=end, backend=done.backend, version=done.version))
            given = scene.given if number < len(scenes) - 1 else 0
            ids += [*done.ids, *([5] * given)]
            mask += [1] * len(done.ids) + [0] * given
            logprobs += [*done.logprobs, *([None] * given)]
        segment = Segment(
            prompt_ids=prompt, response_ids=ids, loss_mask=mask, logprobs=logprobs, spans=spans, prompt_text=tale.prompt
        )
        return Ran(trajectory=Trajectory(segments=[segment], turns=turns, stop_reason="finish"), export=context.carry)

    async def eval(self, context: Eval) -> Score:
        tale = msgspec.convert(context.job.payload, Tale)
        reward = tale.rewards[context.export % len(tale.rewards)]
        parts = {"tests passed": reward, "format": 1.0}
        if not tale.judged:
            return Score(reward=reward, parts=parts)
        vote = "YES" if reward > 0 else "NO"
        told = {"judge": "oracle", "prompt": f"Is it right?\n{tale.prompt}", "votes": [vote, "NO", vote]}
        return Score(reward=reward, parts=parts, note=f"judge oracle: {vote} NO {vote}", evidence=told)


async def logged(log: TurnLog | None, sent: int, done: Completion, scene: Scene) -> None:
    """Writes a turn into the job's log as it goes: it can be looked at, and no attempt continues from it."""
    if log is not None and not log.before:
        ids, logprobs = pack_tokens(done.ids, done.logprobs)
        by, version = done.backend, done.version
        sampled = LoggedCompletion(
            SCHEMA, sent, b"", ids, logprobs, done.finish_reason, None, by, version, (), None, done.seconds, 0, 0, None
        )
        await log.append(compress(encode(sampled)), wait=True)
    await asyncio.sleep(scene.pause_ms / 1000)
    if log is not None and not log.before:
        calls = [CallResult(each.result, each.ok, refused=False, seconds=each.seconds) for each in scene.calls]
        await log.append(compress(encode(TurnResults(calls, scene.reply or None, 0.0, 0.0))), wait=False)
