"""Which addresses a tenant's backend may have."""

import pytest

from prorl_mq.errors import AddressRefused
from prorl_mq.rules.reach import Reach, allowed, check, reached
from prorl_mq.schema.addresses import parse

NEVER = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "224.0.0.1", "239.1.1.1",
    "240.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378::1",
]  # fmt: skip
NODES = ["10.0.0.7", "172.16.3.4", "192.168.1.9", "100.64.0.9", "8.8.8.8", "fd00:1::7", "2600::7", "::ffff:10.0.0.7"]


def may(found: str, *declared: str, address: str = "http://gpu7.cluster:8000", **about: tuple[str, ...]) -> bool:
    reach = Reach(declared=declared or None, **about)
    return allowed(parse(address), found, reach)


@pytest.mark.parametrize("found", NEVER)
def test_no_tenant_reaches_loopback_link_local_metadata_or_multicast(found: str) -> None:
    assert not may(found)
    assert not may(found, "gpu7.cluster", "*.cluster", "0.0.0.0/0", "[::/0]")


@pytest.mark.parametrize("found", NODES)
def test_a_node_is_reached_unless_the_operator_declared_others(found: str) -> None:
    assert may(found)
    assert not may(found, "10.200.0.0/16")
    assert not allowed(parse("http://gpu7.cluster:8000"), found, Reach(declared=()))


@pytest.mark.parametrize(
    ("found", "declared", "expected"),
    [
        ("10.1.2.3", "10.1.0.0/16", True),
        ("10.2.2.3", "10.1.0.0/16", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.0.0/16:8000", True),
        ("10.1.2.3", "10.1.0.0/16:8001", False),
        ("10.1.2.3", "10.1.0.0/16:7000-8999", True),
        ("fd00:1::7", "[fd00:1::/32]:8000", True),
        ("fd00:2::7", "[fd00:1::/32]", False),
        ("10.1.2.3", "gpu7.cluster", True),
        ("10.1.2.3", "GPU7.cluster:8000", True),
        ("10.1.2.3", "gpu8.cluster", False),
        ("10.1.2.3", "*.cluster:8000-8000", True),
        ("10.1.2.3", "*.other", False),
        ("::ffff:10.1.2.3", "10.1.0.0/16", True),
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "127.0.0.0/8", True),
        ("::ffff:127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "127.0.0.1:8001", False),
        ("127.0.0.2", "127.0.0.1:8000", False),
    ],
)
def test_the_operator_declares_networks_names_and_ports(found: str, declared: str, expected: bool) -> None:
    assert may(found, declared) is expected


def test_a_suffix_is_not_the_end_of_another_name() -> None:
    assert not may("10.1.2.3", "*.cluster", address="http://evilcluster:8000")
    assert not may("10.1.2.3", "*.cluster", address="http://cluster:8000")


def test_nothing_opens_what_the_service_listens_on_itself() -> None:
    listeners = ("10.0.0.5:8000", "127.0.0.1:8000")
    for found in ("10.0.0.5", "::ffff:10.0.0.5", "127.0.0.1"):
        assert not may(found, "10.0.0.0/8", "127.0.0.1", listeners=listeners)
    assert may("10.0.0.5", "10.0.0.0/8", "127.0.0.1", listeners=("10.0.0.5:8001",))


@pytest.mark.anyio
async def test_a_prefix_of_paths_is_for_the_operator() -> None:
    assert await reached(parse("http://10.0.0.7:8000/v1"), Reach()) == ["10.0.0.7"]
    with pytest.raises(AddressRefused, match="no path but /v1"):
        await reached(parse("http://10.0.0.7:8000/internal"), Reach())


@pytest.mark.parametrize(
    "text", ["", "http://a", "10.0.0.1/8", "10.0.0.0/33", "a:0", "a:9-8", "a:70000", "a b", "[::1", "*", "a/8"]
)
def test_what_declares_no_addresses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|ports|network"):
        check(text)
