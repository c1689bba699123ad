"""What a server that cannot start says."""

from pathlib import Path

import pytest

from prorl_mq.errors import ServerUnfit
from prorl_mq.process import redis_server

pytestmark = [pytest.mark.process, pytest.mark.anyio]


async def test_data_of_another_server_is_not_sent_to_a_program_that_would_cut_it_off(tmp_path: Path) -> None:
    """Redis 7.0 on what the embedded Valkey has written proposed `redis-check-aof --fix`, and nothing else."""
    files = tmp_path / "appendonlydir"
    files.mkdir()
    manifest = ["file appendonly.aof.1.base.rdb seq 1 type b", "file appendonly.aof.1.incr.aof seq 1 type i", ""]
    (files / "appendonly.aof.manifest").write_text("\n".join(manifest))
    (files / "appendonly.aof.1.base.rdb").write_bytes(b"REDIS0999" + bytes(64))
    (files / "appendonly.aof.1.incr.aof").touch()
    with pytest.raises(ServerUnfit, match="--redis-server embedded"):
        async with redis_server.running(tmp_path):
            pass
