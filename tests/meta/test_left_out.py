"""A run says at its end what it left out, and which command brings that."""

from tests.support.left_out import ALL, left_out


def test_tests_that_wait_for_one_command_are_counted_together() -> None:
    reasons = [
        "Skipped: no Slurm: run `make slurm`",
        "Skipped: no A: run `make agents`",
        "Skipped: no B: run `make agents`",
    ]
    assert left_out(reasons) == [
        "   2 no A: run `make agents` (and 1 like it)",
        "   1 no Slurm: run `make slurm`",
        ALL,
    ]


def test_what_no_command_brings_is_named_by_its_reason() -> None:
    assert left_out(["Skipped: no control group is delegated"]) == ["   1 no control group is delegated"]


def test_a_run_that_left_out_nothing_says_nothing() -> None:
    assert left_out([]) == []
