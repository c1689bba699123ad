"""Full-text search: which texts fit, where, and that no query or text makes it slow."""

import pytest

from prorl_mq.rules.transcripts import AROUND, HITS, Words, hits
from prorl_mq.schema.messages import GroupRecord, Outcome, SampleRecord, Verdict
from prorl_mq.schema.trajectory import Segment, ToolCall, Trajectory, Turn


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("error", "an ERROR, and an error", "ERROR"),
        ("b a", "a before b", "b"),
        ('"a b"', "b a", None),
        ('"a b"', "x A B y", "A B"),
        ("a lost", "a word", None),
        ('"open', 'said "open', '"open'),
        ("(a+)+$", "regular (A+)+$", "(A+)+$"),
        ("STRASSE", "Straße", None),
        ("GRÖSSE", "eine grösse", "grösse"),
        ("istanbul", "İİ in İstanbul", "İstanbul"),
        ("\u2028x", "a \u2028X", "X"),
    ],
)
def test_a_text_fits_if_all_words_stand_there_in_any_case(query: str, text: str, expected: str | None) -> None:
    place = Words(query).place(text)
    assert (text[slice(*place)] if place else None) == expected


@pytest.mark.parametrize("query", ["", "  ", "\n\t"])
def test_a_query_needs_a_word(query: str) -> None:
    with pytest.raises(ValueError, match="q is empty"):
        Words(query)


@pytest.mark.timeout(60)
def test_a_text_of_megabytes_takes_no_time_by_its_product_with_the_query() -> None:
    """Comparing letter by letter from each place takes minutes here, and holds up the whole process."""
    assert Words("a" * 499 + "b").place("a" * 80_000_000) is None


def _sample(job: str, text: str, *, turns: int) -> tuple[SampleRecord, Trajectory]:
    calls = [ToolCall(name="bash", arguments=text, result=text, ok=True, seconds=0.0)]
    segment = Segment(prompt_ids=[1], response_ids=[], loss_mask=[], logprobs=[])
    said = [
        Turn(segment=0, text="", finish_reason="stop", prompt_tokens=1, cached_tokens=None, completion_tokens=0,
             llm_seconds=0.0, tool_calls=calls)
        for _ in range(turns)
    ]  # fmt: skip
    record = SampleRecord(job_id=job, index=0, outcome=Outcome.COMPLETED, reward=1.0)
    return record, Trajectory(segments=[segment], turns=said, stop_reason="answer")


def test_a_sample_has_its_first_hits_with_what_stands_around_them() -> None:
    many, few = _sample("r:g:0", f"{'é' * 100}needle{'x' * 100}", turns=9), _sample("r:g:1", "", turns=1)
    record = GroupRecord(
        run_id="r", batch_id="b", group_id="g", task_id="the needle", data_source="math", verdict=Verdict.ACCEPTED,
        samples=[many[0], few[0]], n=2,
    )  # fmt: skip
    found = list(hits(Words("NEEDLE"), record, {"r:g:0": many[1]}))
    assert [(hit.job_id, hit.turn, hit.where) for hit in found] == [
        ("r:g:0", None, "task"), ("r:g:0", 0, "arguments"), ("r:g:0", 0, "result"), ("r:g:1", None, "task"),
    ]  # fmt: skip
    assert HITS == 3
    start, end = found[2].match
    assert found[2].excerpt[start:end] == "needle"
    assert found[2].excerpt == f"{'é' * AROUND}needle{'x' * AROUND}"
