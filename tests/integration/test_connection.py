"""What the service asks of connections beyond what the client library promises."""

import asyncio

import pytest

from prorl_mq.store.server.connection import RedisSettings, ask, connect

pytestmark = pytest.mark.anyio


async def test_a_server_that_does_not_let_go_fails_nobody(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending TLS takes an answer of the other side, which a busy one gives late: a worker has drained all the same."""
    client = connect(settings, connections=1)
    await ask(client, "PING")
    connection = await client.connection_pool.get_connection()
    await client.connection_pool.release(connection)
    writer = connection._writer
    assert writer is not None

    async def hang(_: asyncio.StreamWriter) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.StreamWriter, "wait_closed", hang)
    monkeypatch.setattr(connection, "socket_connect_timeout", 0.01)
    await client.aclose()
    assert not connection.is_connected
    assert writer.transport.is_closing()
