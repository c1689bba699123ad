"""What stands on the command lines of a service's processes, which every user of the machine can read."""

from itertools import chain
from pathlib import Path

import pytest

from prorl_mq.cli.local import programs
from prorl_mq.cli.local.settings import ServiceSettings
from prorl_mq.dashboard import settings as dashboard
from prorl_mq.schema.messages import Stage
from prorl_mq.store.server.connection import RedisSettings


@pytest.mark.parametrize(
    "url",
    ["redis://user:pass-word@db:6379/1", "redis+sentinel://:pass-word@s1:26379/main/0?sentinel_password=pass-word"],
)
def test_no_process_of_a_service_shows_a_password(tmp_path: Path, url: str) -> None:
    redis = RedisSettings(url=url, username="ann", password="pass-word-too")
    settings = ServiceSettings(state_dir=tmp_path, processes=dict.fromkeys(Stage, 1), redis=redis)
    keeper = programs.keeper(settings, redis)
    assert keeper is not None
    page = programs.dashboard(tmp_path, redis, port=0, database=1, token="pass-word")
    api, compat = programs.api(settings, redis, 1), programs.compat(settings, redis, 2)
    made = [api, compat, keeper, *programs.workers(settings, redis), *page]
    assert "pass-word" not in " ".join(chain.from_iterable(each.argv for each in made))
    assert {each.env["PRORL_REDIS"] for each in made} == {url}
    argv = page[0].argv
    found = dashboard.settings_from(argv[argv.index("-m") + 2 :], page[0].env).redis
    assert (found.url, found.username, found.password) == (url, "ann", "pass-word-too")


def test_run_workers_of_more_slots_than_one_process_serves_are_several(tmp_path: Path) -> None:
    redis = RedisSettings(url="unix:///r")
    settings = ServiceSettings(state_dir=tmp_path, processes={Stage.INIT: 1, Stage.RUN: 2}, redis=redis, slots=401)
    found = [(each.name, each.argv[each.argv.index("--slots") + 1]) for each in programs.workers(settings, redis)]
    assert found == [("init-1", "401"), ("run-1", "200"), ("run-2", "201"), ("run-3", "200"), ("run-4", "201")]
