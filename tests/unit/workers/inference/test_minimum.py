"""The documented minimum versions are those that probes enforce."""

from pathlib import Path

import pytest

from workers.inference.assignment import WireProtocol
from workers.inference.minimum import SERVERS

PAGE = (Path(__file__).parents[4] / "docs/reference/backends.md").read_text()


@pytest.mark.parametrize("protocol", list(WireProtocol))
def test_each_protocol_is_in_the_table_with_its_oldest_server(protocol: WireProtocol) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{protocol.value}` |")]
    known = SERVERS.get(protocol)
    if known is not None:
        assert f"{known.name} {'.'.join(map(str, known.oldest))}" in row
