"""Whatever conversations agents lead: each trained token is in one row, and no beginning is stored twice."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.converters.rollout import Rollout, TrainingRow, rollout
from prorl_mq.schema.codec import decode_any, decode_trajectory, encode, encode_trajectory, expand
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.messages import Outcome, SampleRecord, Sampling
from prorl_mq.schema.trajectory import ForkedFrom, HostReached, Trajectory, check
from tests.agent.chat import ScriptedPolicy, bare, tooled
from workers.agent.result import LoopEnd
from workers.external.forest import GivenIds
from workers.external.history import Said
from workers.external.recording import Recording
from workers.external.reply import RecordedReply

RENDERER = bare()
DONE = LoopEnd(reason="finish")
BRIEF = Said(role="system", text="Be brief.")
OPS = ("say", "branch", "retry", "drop", "edit", "new", "lost", "side", "both")


class Policy(ScriptedPolicy):
    """Says something else each time, and keeps what was sent and sampled."""

    def __init__(self) -> None:
        super().__init__(RENDERER, [])
        self.whole: list[tuple[int, ...]] = []

    async def generate(self, prompt_ids: Sequence[int], **about: Any) -> Any:
        self.texts.append(f"Answer {len(self.whole)}")
        found = await super().generate(prompt_ids, **about)
        self.whole.append((*prompt_ids, *found.ids))
        return found


class Talk:
    """Agents that share one recording."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.recording = Recording(self.policy, RENDERER, Sampling(max_turns=500, max_tokens=1 << 20), "s")
        self.talks: list[list[Said]] = [[BRIEF]]
        self.count = 0

    def more(self) -> Said:
        self.count += 1
        return Said(role="user", text=f"Message {self.count}")

    async def ask(self, history: list[Said], **about: Any) -> RecordedReply:
        reply = await self.recording.ask(history, (), **about)
        self.talks.append([*history, msgspec.structs.replace(reply.said, ids=(reply.id("call", 0),))])
        return reply

    async def act(self, op: str, pick: int) -> None:
        talk = self.talks[pick % len(self.talks)]
        answers = [place for place, said in enumerate(talk) if said.role == "assistant"]
        match op:
            case "say":
                await self.ask([*talk, self.more()])
            case "branch":
                await self.ask([*talk[: 1 + pick % len(talk)], self.more()])
            case "both":
                await asyncio.gather(self.ask([*talk, self.more()]), self.ask([*talk, self.more()]))
            case "new":
                await self.ask([BRIEF, self.more()])
            case "side":
                await self.ask([*talk, self.more()], side=True)
            case "retry" if answers:
                await self.ask(talk[: answers[-1]])
            case "drop" if answers:
                await self.ask([*talk[: answers[-1]], self.more()])
            case "edit" if answers:
                place = answers[pick % len(answers)]
                await self.ask([*talk[:place], Said(role="assistant", text="Edited"), self.more()])
            case "lost" if answers:
                reply = await self.ask([*talk, self.more()])
                self.recording.lost(reply)
            case _:
                pass

    async def trajectory(self) -> Trajectory:
        found = await self.recording.trajectory(DONE)
        assert found is not None
        return found


def of(trajectory: Trajectory) -> Rollout:
    return rollout("t", SampleRecord(job_id="r:g:0", index=0, outcome=Outcome.COMPLETED, reward=1.0), trajectory)


def ids(row: TrainingRow) -> tuple[int, ...]:
    return (*row.prompt_ids, *row.response_ids)


def trie(sequences: Sequence[Sequence[int]]) -> int:
    """The number of its nodes: what each has beyond its neighbour in their order."""
    ordered = [(), *sorted(map(tuple, sequences))]
    return sum(len(after) - common(before, after) for before, after in pairwise(ordered))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def stored_tokens(trajectory: Trajectory) -> int:
    form = decode_any(expand(encode_trajectory(trajectory)))
    if "tree" in form:
        return sum(len(each["ids"]) for each in form["tree"])
    return sum(len(each["prompt_ids"]) + len(each["response_ids"]) for each in form["segments"])


async def led(ops: Sequence[tuple[str, int]]) -> tuple[Talk, Trajectory]:
    talk = Talk()
    await talk.act("new", 0)
    for op, pick in ops:
        await talk.act(op, pick)
    return talk, await talk.trajectory()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 50)), max_size=14))
def test_in_any_forest_each_trained_token_is_in_one_row_and_nothing_is_repeated(ops: list[tuple[str, int]]) -> None:
    talk, trajectory = asyncio.run(led(ops))
    check(trajectory)
    assert encode(decode_trajectory(encode_trajectory(trajectory))) == encode(trajectory)
    rows = of(trajectory).rows if any(each.spans for each in trajectory.segments) else []
    trained = [whole for whole, turn in zip(talk.policy.whole, trajectory.turns, strict=True) if not turn.left_out]
    # Completions differ, so a token is known by all that stands before it.
    masked = sorted(
        ids(row)[: len(row.prompt_ids) + place + 1] for row in rows for place, mask in enumerate(row.loss_mask) if mask
    )
    counts = [turn.completion_tokens for turn in trajectory.turns if not turn.left_out]
    sampled = [
        whole[: len(whole) - place] for whole, count in zip(trained, counts, strict=True) for place in range(count)
    ]
    assert masked == sorted(sampled)
    ordered = sorted(map(ids, rows))
    assert not any(after[: len(before)] == before for before, after in pairwise(ordered))
    leaves = [one for one in trained if not any(other != one and other[: len(one)] == one for other in trained)]
    assert ordered == sorted(leaves)
    assert stored_tokens(trajectory) <= 1.05 * trie(talk.policy.whole)
    assert abs(sum(row.share for row in rows) - bool(rows)) < 1e-9


async def alternating(turns: int) -> tuple[Talk, Trajectory]:
    """An agent of many turns that asks a sub-agent, which has a conversation of its own, after each."""
    talk = Talk()
    main, other = [BRIEF, Said(role="user", text="M" * 400)], [BRIEF, Said(role="user", text="S" * 400)]
    for _ in range(turns):
        for history in (main, other):
            reply = await talk.recording.ask(history, ())
            history += [reply.said, talk.more()]
    return talk, await talk.trajectory()


def test_an_agent_that_alternates_with_a_sub_agent_is_two_rows() -> None:
    talk, trajectory = asyncio.run(alternating(20))
    rows = of(trajectory).rows
    assert len(rows) == 2
    assert sum(map(len, map(ids, rows))) <= 1.05 * sum(map(len, talk.policy.whole[-2:]))
    assert sum(sum(row.loss_mask) for row in rows) == sum(turn.completion_tokens for turn in trajectory.turns)


def test_control_a_segment_for_each_prompt_that_does_not_continue_the_one_before_repeats_its_history() -> None:
    """One open segment, as it was: ten times the tokens."""
    talk, _ = asyncio.run(alternating(20))
    assert sum(map(len, talk.policy.whole)) > 10 * sum(map(len, talk.policy.whole[-2:]))


def test_control_segments_that_are_stored_whole_repeat_what_they_share() -> None:
    _, trajectory = asyncio.run(led([("branch", 1)] * 6))
    whole = [(*each.prompt_ids, *each.response_ids) for each in trajectory.segments]
    assert sum(map(len, whole)) > 1.05 * trie(whole) >= stored_tokens(trajectory)


async def asked_again(*, lost: bool, then: int | None) -> tuple[Talk, list[str]]:
    """The same request twice; `then`: which of its answers is continued."""
    talk = Talk()
    history = [BRIEF, talk.more()]
    replies = [await talk.ask(history)]
    if lost:
        talk.recording.lost(replies[0])
    replies.append(await talk.ask(history))
    if then is not None:
        await talk.ask([*history, replies[then].said, talk.more()])
    return talk, [turn.left_out for turn in (await talk.trajectory()).turns]


def test_the_answer_that_a_repeat_has_replaced_is_not_trained() -> None:
    assert asyncio.run(asked_again(lost=False, then=1))[1] == ["superseded", "", ""]
    assert asyncio.run(asked_again(lost=False, then=None))[1] == ["", ""]


def test_who_lost_an_answer_gets_it_again_and_one_that_nobody_read_is_not_trained() -> None:
    talk, left_out = asyncio.run(asked_again(lost=True, then=None))
    assert (len(talk.policy.whole), left_out) == (1, [""])

    async def unread() -> list[str]:
        talk = Talk()
        first = await talk.ask([BRIEF, talk.more()])
        last = await talk.ask([*talk.talks[-1], talk.more()])
        talk.recording.lost(first)  # it was read: somebody has continued it
        talk.recording.lost(last)
        return [turn.left_out for turn in (await talk.trajectory()).turns]

    assert asyncio.run(unread()) == ["", "unread"]


def test_an_id_that_was_given_out_outranks_rewritten_arguments_and_an_edited_text_does_not() -> None:
    async def told(text: str, *, named: bool) -> tuple[int, int]:
        talk = Talk()
        reply = await talk.ask([BRIEF, talk.more()])
        ids = (reply.id("call", 0),) if named else ()
        other = Said(role="assistant", text=text, calls=(("invalid", "{}"),), ids=ids)
        await talk.ask([*talk.talks[-1][:2], other, talk.more()])
        trajectory = await talk.trajectory()
        return len(trajectory.segments), trajectory.turns[-1].rewritten

    assert asyncio.run(told("Answer 0", named=True)) == (1, 1)
    assert asyncio.run(told("Answer 0", named=False)) == (2, 0)
    assert asyncio.run(told("Edited", named=True)) == (2, 0)


def test_an_id_of_another_attempt_means_nothing() -> None:
    one, other = GivenIds(), GivenIds()
    assert (one.number(one.make("call", 7, 2)), one.place(one.make("call", 7, 2))) == (7, (7, 2))
    assert [each.number(one.make("call", 7)) for each in (one, other)] == [7, None]
    assert [other.place(each) for each in ("", "call_1", one.make("call", 7, 2))] == [None, None, None]


def test_where_a_template_drops_thoughts_the_format_chooses() -> None:
    """Ids that keep them, marked; or the conversation in the template's form, with earlier answers as prompt."""

    async def asked(*, begins: bool) -> Trajectory:
        renderer = tooled()
        renderer.family.begins_lineages = begins  # type: ignore[attr-defined]
        policy = ScriptedPolicy(renderer, ["<think>\nwombat\n</think>\n\nOne.", "Two.", "Three."])
        recording, history = Recording(policy, renderer, Sampling(), "s"), [Said(role="user", text="Go")]
        for _ in range(3):
            reply = await recording.ask(history, ())
            history += [reply.said, Said(role="user", text="And?")]
        found = await recording.trajectory(DONE)
        assert found is not None
        check(found)
        return found

    [kept] = asyncio.run(asked(begins=False)).segments
    assert kept.keeps_thinking
    first, again = asyncio.run(asked(begins=True)).segments
    assert (first.keeps_thinking, again.keeps_thinking, again.opened_by) == (False, False, "other")
    assert ("wombat" in again.prompt_text, "One." in again.prompt_text) == (False, True)
    assert (sum(first.loss_mask) > 0, len(again.spans)) == (True, 2)


def test_calls_at_once_are_answered_at_once() -> None:
    """Each waits for the other: one after the other they would wait forever."""

    async def both() -> None:
        talk = Talk()
        answer, met = talk.policy.generate, asyncio.Barrier(2)

        async def meets(*prompt: Any, **about: Any) -> Any:
            await met.wait()
            return await answer(*prompt, **about)

        talk.policy.generate = meets  # type: ignore[method-assign]
        async with asyncio.timeout(20):
            await talk.act("both", 0)

    asyncio.run(both())


def test_calls_at_once_never_exceed_the_limits_of_their_job() -> None:
    async def many(**limits: Any) -> Trajectory:
        talk = Talk()
        talk.recording = Recording(talk.policy, RENDERER, Sampling(**limits), "s")
        asked = (talk.ask([BRIEF, talk.more()]) for _ in range(6))
        await asyncio.gather(*asked, return_exceptions=True)
        assert talk.recording.stop is not None
        return await talk.trajectory()

    turns = asyncio.run(many(max_turns=4)).turns
    assert len(turns) == 4
    tokens = asyncio.run(many(max_tokens=20))
    check(tokens)
    assert sum(turn.completion_tokens for turn in tokens.turns) == 20


def test_each_field_of_a_trajectory_is_stored_with_what_its_segments_share() -> None:
    """A new field must be named there, or it is lost wherever two segments begin alike."""
    plain = asyncio.run(alternating(2))[1]
    other: dict[str, Any] = {
        "stop_reason": "time", "truncated_by": "time", "temperature": 0.25, "top_p": 0.5, "top_k": 7,
        "tools": [{"name": "t"}], "artefact": b"patch", "forked_from": ForkedFrom(job_id="r:g:0", turn=0),
        "egress": [HostReached(host="pypi.org:443", connections=1)],
        "images": [PromptImage(kind="image/png", width=1, height=1, data=b"png")], "image_id": 1 << 20,
    }  # fmt: skip
    unlike = msgspec.structs.replace(plain, **other)
    assert set(other) == set(Trajectory.__struct_fields__) - {"segments", "turns", "schema"}
    data = encode_trajectory(unlike)
    assert "tree" in decode_any(expand(data))
    assert encode(decode_trajectory(data)) == encode(unlike)


def test_a_row_is_drawn_as_often_as_its_share_says() -> None:
    found = of(asyncio.run(alternating(2))[1])
    shares = [row.share for row in found.rows]
    drawn = [0, 0]
    for number in range(2000):
        sample = msgspec.structs.replace(found.sample, job_id=f"r:g:{number}")
        drawn[msgspec.structs.replace(found, sample=sample).drawn] += 1
    assert abs(drawn[0] / 2000 - shares[0]) < 0.05
