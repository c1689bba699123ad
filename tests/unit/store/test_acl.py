"""The printer of Redis users gives nobody more than a role's, whatever the name it is told."""

import pytest

from prorl_mq.store.server import acl


@pytest.mark.parametrize("name", ["*", "a?b", "[a-z]", "ann on nopass ~* +@all", "ann\n", "ann:r", "\\*", "", "ann}"])
@pytest.mark.parametrize("flag", ["--tenant", "--namespace"])
def test_a_name_that_redis_reads_as_a_pattern_or_as_rules_is_refused(
    flag: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        acl.main([flag, name])
    assert (ended.value.code, capsys.readouterr().out) == (2, "")


def test_a_name_that_is_one_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    acl.main(["--namespace", "p-1", "--tenant", "ann.b_c"])
    assert "user p-1-trainer-ann.b_c off resetkeys " in capsys.readouterr().out
