"""The test for biased loss: rarely an alarm where samples are lost by chance, nearly always where long ones are."""

import random
from collections.abc import Callable

from prorl_mq.rules.bias import ALARM, LEAST, Losses, of_group, told
from prorl_mq.schema.messages import Outcome, SampleRecord

N, GROUPS, RUNS = 8, 300, 200
Loss = Callable[[int], float]  # length → probability


def sample(length: int, *, lost: bool = False) -> SampleRecord:
    outcome = Outcome.STAGE_TIMEOUT if lost else Outcome.COMPLETED
    return SampleRecord(job_id="r:g:0", index=0, outcome=outcome, response_tokens=length)


def alarmed(chance: random.Random, loss: Loss) -> bool:
    """True if a run of `GROUPS` groups has ever given an alarm: it is looked at after each."""
    sums = Losses()
    for _ in range(GROUPS):
        middle = chance.uniform(4, 8)  # prompts differ in how long they make the policy write
        lengths = [round(chance.lognormvariate(middle, 0.7)) + 1 for _ in range(N)]
        sums += of_group([sample(each, lost=chance.random() < loss(each)) for each in lengths])
        if told(sums):
            return True
    return False


def test_losses_by_chance_give_an_alarm_in_less_than_one_run_of_fifty() -> None:
    chance = random.Random(7)
    assert sum(alarmed(chance, lambda _: 0.05) for _ in range(RUNS)) <= RUNS // 50


def test_losses_that_depend_on_the_length_are_found_in_nine_runs_of_ten() -> None:
    """One in four samples above 1,000 tokens times out, and one in fifty of the others."""
    chance = random.Random(8)
    assert sum(alarmed(chance, lambda length: 0.25 if length > 1_000 else 0.02) for _ in range(20)) >= 18


def test_without_the_groups_prompts_that_differ_would_be_taken_for_a_bias() -> None:
    """The control: losses that depend on the prompt alone are no alarm, and are one where ranks cross groups."""
    chance = random.Random(9)
    sums, everything = Losses(), list[SampleRecord]()
    for _ in range(GROUPS):
        hard = chance.random() < 0.5
        lengths = [round(chance.lognormvariate(7 if hard else 5, 0.7)) + 1 for _ in range(N)]
        group = [sample(each, lost=chance.random() < (0.2 if hard else 0.02)) for each in lengths]
        sums += of_group(group)
        everything += group
    assert (told(sums), sums.lost > LEAST) == ("", True)
    assert of_group(everything).z > ALARM


def test_a_group_without_lost_or_without_counted_samples_says_nothing() -> None:
    assert of_group([sample(5), sample(7)]) == of_group([sample(5, lost=True)]) == Losses()
    never = SampleRecord(job_id="r:g:1", index=1, outcome=Outcome.INFRA_ERROR)  # it ended before it had a length
    assert of_group([sample(5), never]) == Losses()


def test_ties_move_nothing() -> None:
    same = of_group([sample(5, lost=True), sample(5), sample(5)])
    assert (same.lost, same.shift, same.variance) == (1, 0, 0)
    mixed = of_group([sample(9, lost=True), sample(5), sample(7)])
    assert (mixed.shift, mixed.variance) == (2, round(2 * 4 / 3))
