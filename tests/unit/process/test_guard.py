"""What a guard makes of the words of its owner."""

from prorl_mq.process.guard import ToldGroups, read


def test_groups_that_have_not_ended_are_left_the_newest_first() -> None:
    assert read(["+1\n", "+2\n", "-1\n", "+3\n"]) == ToldGroups([3, 2], [1, 2, 3], farewell=False)


def test_an_owner_that_ends_well_says_so() -> None:
    assert read(["+1\n", "-1\n", ".\n"]) == ToldGroups([], [1], farewell=True)
