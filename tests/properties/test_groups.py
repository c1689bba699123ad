"""A group's verdict, whatever its samples did."""

from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.rules.groups import Withdrawal, decide, replaced
from prorl_mq.schema.lifecycle import COUNTS, REFILLED
from prorl_mq.schema.messages import Outcome, SampleRecord, Verdict

outcomes = st.lists(st.sampled_from(list(Outcome)), max_size=12)
withdrawals = st.sampled_from([None, Withdrawal.CANCEL])
sizes = st.integers(1, 8)


def samples(ended: list[Outcome]) -> list[SampleRecord]:
    return [SampleRecord(job_id=f"r:g:{index}", index=index, outcome=each) for index, each in enumerate(ended)]


@given(outcomes, sizes, st.integers(0, 20), st.integers(0, 20), withdrawals)
def test_a_group_gets_refills_or_a_verdict_and_never_both(
    ended: list[Outcome], n: int, refills: int, max_refills: int, withdrawn: Withdrawal | None
) -> None:
    decision = decide(samples(ended), n=n, refills=refills, max_refills=max_refills, withdrawn=withdrawn)
    assert (decision.wanted > 0) != (decision.verdict is not None)
    assert decision.wanted >= 0
    counted = sum(each in COUNTS for each in ended)
    assert (decision.verdict is Verdict.ACCEPTED) == (counted >= n)
    if decision.wanted:
        assert decision.wanted == n - counted
        assert refills + decision.wanted <= max_refills
        assert not withdrawn
        assert set(ended) <= COUNTS | REFILLED
    elif decision.verdict is not Verdict.ACCEPTED:
        assert decision.reason


@given(outcomes, sizes, st.integers(0, 20), withdrawals)
def test_a_cancel_outranks_an_expiry_and_both_outrank_a_failure(
    ended: list[Outcome], n: int, max_refills: int, withdrawn: Withdrawal | None
) -> None:
    decision = decide(samples(ended), n=n, refills=0, max_refills=max_refills, withdrawn=withdrawn)
    match decision.verdict:
        case Verdict.CANCELLED:
            assert withdrawn or Outcome.CANCELLED in ended
        case Verdict.EXPIRED:
            assert Outcome.EXPIRED in ended
            assert not withdrawn
            assert Outcome.CANCELLED not in ended
        case Verdict.FAILED:
            assert set(ended) <= COUNTS | REFILLED
        case Verdict.ACCEPTED | None:
            pass
        case Verdict.FILTERED:
            raise AssertionError("no filter stands here")


@given(sizes, st.integers(0, 20), st.data())
def test_refills_end(n: int, max_refills: int, data: st.DataObject) -> None:
    """However the samples of a group end, it closes after at most n + max_refills of them."""
    ended: list[Outcome] = []
    refills, wanted = 0, n
    while wanted:
        ended += data.draw(st.lists(st.sampled_from(list(Outcome)), min_size=wanted, max_size=wanted))
        decision = decide(samples(ended), n=n, refills=refills, max_refills=max_refills, withdrawn=None)
        wanted = decision.wanted
        refills += wanted
    assert len(ended) == n + refills
    assert refills <= max_refills


@given(outcomes, sizes)
def test_as_many_lost_samples_are_marked_as_refills_were_made_for_them(ended: list[Outcome], n: int) -> None:
    before = samples(ended)
    after = replaced(before, n)
    marked = [sample for sample in after if sample.replaced]
    lost = [sample for sample in before if sample.outcome in REFILLED]
    assert len(marked) == min(len(lost), max(0, len(ended) - n))
    assert all(sample.outcome in REFILLED for sample in marked)
    assert [sample.job_id for sample in after] == [sample.job_id for sample in before]
