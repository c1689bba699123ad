"""Bytes that are no request, or a strange one: headers and chunked bodies against the command, over its port.

No answer is a server's fault, what no token opens stays shut, and everybody else is answered.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from hypothesis import HealthCheck, given, seed
from hypothesis import settings as examples
from hypothesis import strategies as st

from prorl_mq.store.server.connection import RedisSettings

EXAMPLES: Final = int(os.environ.get("HOSTILE_EXAMPLES", "40"))  # `make test-security` makes more
PATIENCE_S: Final = 30.0
LAST: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
METHODS: Final = b"GET POST PUT DELETE OPTIONS HEAD CONNECT TRACE get \x00 PRI".split(b" ")
TARGETS: Final = (
    b"/healthz /v1/runs /v1/batches /v1/runs/r/cancel /ui/ /%00 /../etc/passwd //v1/runs http://evil.test/v1/runs * "
    b"/v1/runs?\xff /v1/watch"
).split(b" ")
VERSIONS: Final = b"HTTP/1.1 HTTP/1.1 HTTP/1.0 HTTP/2.0 HTTP/9.9 http/1.1 ".split(b" ")
ENDS: Final = [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"]
HEADERS: Final = rb"""Host: localhost|Host: evil.test|Host:|Content-Length: 5|Content-Length: -1|Content-Length: 5, 5
Content-Length: 99999999999999999999|Content-Length: 0x5|Content-Length: 6|Transfer-Encoding: chunked
Transfer-Encoding: chunked, identity|Transfer-Encoding:	chunked|Transfer-Encoding: xchunked|Transfer-Encoding : chunked
Expect: 100-continue|Connection: close|Connection: keep-alive, Upgrade|Upgrade: websocket|Upgrade: h2c|Range: bytes=0-
Content-Type: application/json|Content-Type: application/msgpack|Content-Encoding: gzip|Cookie: a=b|Origin: null
Authorization: Bearer wrong-token|Authorization: Bearer %|Authorization:| folded: line|no colon|: empty|X%: y
traceparent: 00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01|Accept: %|Content-Type: text/%|Last-Event-ID: %"""
SIZES: Final = [b"5", b"0", b"-5", b"0x5", b"5;ext=1", b"F" * 16, b"f" * 17, b"", b"5 ", b" 5", b"g", b"00000005"]
DATA: Final = [b"hello", b"{}", b"", b"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"]
headers = st.builds(
    lambda header, odd: header.replace(b"%", odd),
    st.sampled_from([*re.split(rb"[|\n]", HEADERS), b"X: " + b"y" * 9000]),
    st.sampled_from([b"\x00", b"\x01", b"\x7f", b"\xff", b"\xc3\xa9"]),
)
chunks = st.builds(
    lambda size, end, data: size + end + data + end,
    st.sampled_from(SIZES),
    st.sampled_from(ENDS),
    st.sampled_from(DATA),
)
requests = st.builds(
    lambda method, target, version, end, given, body: (
        method + b" " + target + b" " + version + end + b"".join(each + end for each in given) + end + body
    ),
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS),
    st.sampled_from(VERSIONS),
    st.sampled_from(ENDS),
    st.lists(headers, max_size=6),
    st.one_of(st.binary(max_size=200), st.lists(chunks, max_size=4).map(b"".join)),
)


@pytest.fixture(scope="module")
def place(empty_redis: RedisSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of the command, and the token that it asks for."""
    state = tmp_path_factory.mktemp("state")
    argv = [sys.executable, "-m", "api", "--redis", empty_redis.url, "--namespace", empty_redis.namespace]
    argv += ["--port", "0", "--state-dir", str(state)]
    with (state / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().split()[-1]
        token = (state / "token").read_text()
        yield address, token
        assert process.poll() is None, (state / "log").read_text()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
    said = (state / "log").read_text()
    assert "Traceback" not in said
    assert token not in said


def told(port: int, data: bytes, *, idle_s: float) -> bytes:
    """What is answered until the connection ends or, where a body is waited for, until nothing has come for a while."""
    found = b""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    with sock, contextlib.suppress(ConnectionError, TimeoutError):
        sock.sendall(data + LAST)
        sock.settimeout(idle_s)
        while part := sock.recv(65536):
            found += part
    return found


def test_no_bytes_are_answered_by_a_fault_or_open_anything_or_stop_the_service(place: tuple[str, str]) -> None:
    url, token = place
    port = int(url.rpartition(":")[2])
    own = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=own, timeout=PATIENCE_S, trust_env=False) as client:
        statuses: set[int] = set()

        @seed(21_03)
        @examples(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(data=st.lists(requests, min_size=1, max_size=3).map(b"".join))
        def answered(data: bytes) -> None:
            found = told(port, data, idle_s=0.1)
            statuses.update(int(each) for each in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", found, re.MULTILINE))
            assert [each for each in statuses if each >= 500] == [], found
            assert b'{"runs"' not in found, found
            assert client.get("/healthz").status_code == 200
            assert client.get("/v1/runs").json() == {"runs": []}

        answered()
        assert statuses >= {200, 400, 401}, "some were understood, some were not"
        whole = f"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        control = told(port, whole.encode(), idle_s=PATIENCE_S)
    assert (control.count(b"HTTP/1.1 200 "), b'{"runs"' in control) == (2, True)
