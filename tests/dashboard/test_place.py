"""Where RQ's records lie."""

import argparse

import pytest

from prorl_mq.dashboard.mirror import settings_for
from prorl_mq.errors import ConfigurationError
from prorl_mq.servers import database
from prorl_mq.store.server.connection import RedisSettings

CLUSTER = RedisSettings(url="redis+cluster://a,b,c", username="u", password="p")


def test_the_records_of_a_queue_in_a_cluster_lie_on_a_server_beside_it() -> None:
    """Which gets no password that is the cluster's."""
    found = settings_for(CLUSTER, database("redis://beside:6379/2"), None, None)
    assert (found.url, found.username, found.password) == ("redis://beside:6379/2", None, None)
    with pytest.raises(ConfigurationError, match="give --database redis://HOST:PORT/N"):
        settings_for(CLUSTER, database("1"), None, None)


@pytest.mark.parametrize("text", ["-1", "a", "redis+cluster://a,b", "redis://a,b/0", "redis://u:secret@a/0"])
def test_what_is_no_place_for_them_is_refused_without_the_password(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        database(text)
    assert "secret" not in str(refused.value)
