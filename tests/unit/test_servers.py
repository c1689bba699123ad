"""Addresses of several Redis servers."""

import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.servers import fault, servers, with_database


def test_sentinels_are_named_with_the_primary_that_they_know() -> None:
    several = servers("rediss+sentinel://me:pw@[::1]:1,s2/queue/3?ssl_ca_certs=/ca.pem&sentinel_password=s3")
    assert several is not None
    assert several.nodes == (("::1", 1), ("s2", 26379))
    assert several.url(("p", 6380)) == "rediss://me:pw@p:6380/3?ssl_ca_certs=%2Fca.pem"
    assert (several.name, several.sentinel_secret) == ("queue", "s3")


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    several = servers("rediss+cluster://me:pw@a:1,b?ssl_ca_certs=/ca.pem")
    assert several is not None
    assert (several.nodes, several.cluster, several.name) == ((("a", 1), ("b", 6379)), True, "")
    assert several.url(("b", 2)) == "rediss://me:pw@b:2/?ssl_ca_certs=%2Fca.pem"
    assert servers("redis+cluster://a") is not None, "one is enough to find the owner"


@pytest.mark.parametrize("url", ["redis://h:6379/0", "rediss://u:p@h/1?x=1", "unix:///a,b.sock", "http://a,b"])
def test_one_server_is_left_to_the_client_library(url: str) -> None:
    assert servers(url) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+sentinel://s1,s2", "does not say which primary"),
        ("redis+sentinel://u:secret@s1/queue/x", "'x' is not the number of a database"),
        ("redis://a:1,:2/0", "':2' is not HOST:PORT"),
        ("redis://a:1,b:99999/0", "'b:99999' is not HOST:PORT"),
        ("http://u:secret@h", "'http://h' is not a redis://"),
        ("u:secret@h:6379", "'h:6379' is not a redis://"),
        ("redis+cluster://a,b/1", "a cluster has database 0 alone"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, expected: str) -> None:
    assert expected in fault(url)
    assert "secret" not in fault(url)


def test_a_wrong_address_is_raised() -> None:
    with pytest.raises(ConfigurationError):
        servers("redis+sentinel://s1")


def test_the_mirror_lies_in_another_database_of_the_same_servers() -> None:
    assert with_database("redis://a,b/0", 1) == "redis://a,b/1"
    assert with_database("redis+sentinel://s/q?sentinel_password=x", 2) == "redis+sentinel://s/q/2?sentinel_password=x"
