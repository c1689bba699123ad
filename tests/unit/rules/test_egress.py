"""Which hosts a task may list, and which addresses behind them are reached."""

import pytest

from prorl_mq.rules.egress import NamedHost, operator_list, refused, target
from tests.unit.rules.test_reach import NEVER

WRITTEN = [
    "127.0.0.1", "127.0.0.1:443", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "[::1]", "[::1]:443",
    "::1", "::ffff:7f00:1", "1.2.3.4:443", "a.1", "a.0x1",
]  # fmt: skip
NO_HOSTS = [
    "", ":443", "a b", "a/b", "http://a", "a@b", "a:0", "a:65536", "a:", "a:x", "*.a.org", "a..b", ".a", "a.", "a\tb",
    "a\r\nb", "-a.org", "a" * 64, "a." * 130 + "org", "é.org", "a:443:443", "a%2eb",
]  # fmt: skip
PRIVATE = ["10.0.0.7", "172.16.3.4", "192.168.1.9", "100.64.0.9", "198.18.0.1", "fd00:1::7", "::ffff:10.0.0.7"]


@pytest.mark.parametrize("text", [*WRITTEN, *NO_HOSTS])
def test_a_host_is_named_and_never_written_as_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"does not name a host|has no port"):
        target(text)


def test_a_host_comes_with_its_port() -> None:
    written = {"PyPI.org": ("pypi.org", 443), "host:8443": ("host", 8443), "xn--p1ai.org:443": ("xn--p1ai.org", 443)}
    assert {each: target(each) for each in written} == {each: NamedHost(*parts) for each, parts in written.items()}


@pytest.mark.parametrize(
    ("listed", "asked", "wrong"),
    [
        ("", ["pypi.org"], ["pypi.org"]),
        ("any", ["pypi.org", "localhost"], []),
        ("any", ["pypi.org:22"], ["pypi.org:22"]),
        ("pypi.org", ["PyPI.org", "pypi.org:80", "a.pypi.org"], ["pypi.org:80", "a.pypi.org"]),
        ("*.example.org:8443", ["a.b.example.org:8443", "example.org:8443", "badexample.org:8443"],
         ["example.org:8443", "badexample.org:8443"]),
        ("10.0.0.0/8", ["pypi.org"], ["pypi.org"]),
        (" pypi.org:80 , any", ["pypi.org:80", "x.org"], []),
    ],
)  # fmt: skip
def test_a_task_lists_what_the_operator_lets_it_list(listed: str, asked: list[str], wrong: list[str]) -> None:
    assert refused(asked, operator_list(listed)) == wrong


@pytest.mark.parametrize("listed", ["1.2.3.4", "pypi.org:x", "10.0.0.1/8", "*", "https://pypi.org"])
def test_an_operators_list_that_cannot_be_read_is_an_error(listed: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        operator_list(listed)


@pytest.mark.parametrize("address", [*NEVER, *PRIVATE])
def test_an_internal_address_is_reached_only_in_a_network_that_is_listed(address: str) -> None:
    assert not operator_list("any,*.cluster,localhost").reaches(address)
    assert not operator_list("any,203.0.113.0/24").reaches(address)
    assert operator_list("0.0.0.0/0,::/0").reaches(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2600::7", "::ffff:8.8.8.8", "100.63.0.1", "172.32.0.1"])
def test_any_other_is_reached(address: str) -> None:
    assert operator_list("any").reaches(address)


def test_one_listed_network_opens_no_other() -> None:
    listed = operator_list("127.0.0.1/32")
    assert [listed.reaches(each) for each in ("127.0.0.1", "127.0.0.2", "10.0.0.1")] == [True, False, False]
