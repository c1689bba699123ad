"""The one pattern that reads a backend's address."""

import pytest

from prorl_mq.schema.addresses import parse

CALLABLE = {
    "http://gpu7:8000": ("http", "gpu7", 8000, ""),
    "http://GPU7.Cluster": ("http", "gpu7.cluster", 80, ""),
    "https://gpu_7": ("https", "gpu_7", 443, ""),
    "http://10.0.0.7:8000/": ("http", "10.0.0.7", 8000, ""),
    "http://gpu7:8000/v1": ("http", "gpu7", 8000, ""),
    "http://gpu7:8000/v1/": ("http", "gpu7", 8000, ""),
    "https://proxy/replica-1/v1": ("https", "proxy", 443, "/replica-1"),
    "http://[FD00:1::07]:8000": ("http", "fd00:1::7", 8000, ""),
    "http://[::ffff:127.0.0.1]": ("http", "::ffff:7f00:1", 80, ""),
    "http://xn--bcher-kva.example": ("http", "xn--bcher-kva.example", 80, ""),
}
REFUSED = [
    "", "gpu7:8000", "ftp://gpu7", "http:///v1", "http://:8000", "HTTP://gpu7",
    "http://user@gpu7", "http://user:word@gpu7:8000", "http://good.test@evil.test", "http://gpu7:8000@evil.test:80",
    "http://gpu7?x=1", "http://gpu7/?x=1", "http://gpu7/v1?x", "http://gpu7#x", "http://gpu7/#x", "http://gpu7;x",
    "http://gpu7\\@evil.test", "http://gpu7\\.evil.test", "http://gpu7/..", "http://gpu7/a/../b", "http://gpu7/./a",
    "http://gpu7//v1", "http://gpu7/a%2e", "http://gpu7/a b", "http://gpu7/a|b",
    "http://good\t.evil", "http://good\n.evil", "http://gpu7\n", "http://gpu7\r\nHost: x", "http://gpu7 ", " http://gpu7",
    "http://gpu7:0", "http://gpu7:65536", "http://gpu7:99999", "http://gpu7:-1", "http://gpu7:+1", "http://gpu7:8_0",
    "http://gpu7:", "http://gpu7:x", "http://gpu7:\uff18\uff10",
    "http://127.1", "http://2130706433", "http://0177.0.0.1", "http://0x7f000001", "http://0x7f.1", "http://0", "http://1",
    "http://127.0.0.0x1", "http://127.0.0.1.", "http://1.2.3.4.5", "http://a.1", "http://256.1.1.1", "http://0x",
    "http://\u2460\u2461\u2466.0.0.1", "http://\uff11\uff12\uff17.0.0.1", "http://loc\u0430lhost", "http://\u24d4vil.test",
    "http://[v1.x]", "http://[::1", "http://::1", "http://[fe80::1%25eth0]", "http://[fe80::1%eth0]", "http://[]",
    "http://[127.0.0.1]", "http://[zz]",
    "http://.a", "http://a.", "http://a..b", "http://-a", "http://a-", "http://xn--a", f"http://{'a' * 64}",
    f"http://{'.'.join(['a' * 60] * 5)}",
]  # fmt: skip


@pytest.mark.parametrize("address", CALLABLE)
def test_an_address_is_scheme_host_and_port_in_one_form(address: str) -> None:
    assert tuple(parse(address)) == CALLABLE[address]


@pytest.mark.parametrize("address", REFUSED)
def test_everything_else_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        parse(address)


def test_the_place_is_the_same_for_every_way_to_write_it() -> None:
    assert {parse(each).place for each in ("http://H", "http://h:80/", "http://h:80/v1")} == {"h:80"}
    assert {parse(each).place for each in ("http://[0:0::1]:8000", "http://[::1]:8000/")} == {"[::1]:8000"}
