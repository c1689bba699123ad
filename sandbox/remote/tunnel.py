"""A link: the bytes of one connection to an execution server, carried both ways in binary messages of a WebSocket.

Where one message ends means nothing. Either side's close is the end of the connection.
"""

import asyncio
import contextlib
import socket
from typing import Final

from aiohttp import ClientWebSocketResponse, WebSocketError, WSMsgType
from aiohttp.web import WebSocketResponse

PIECE_BYTES: Final = 128 << 10
LinkSocket = ClientWebSocketResponse | WebSocketResponse


async def carry(link: LinkSocket, stream: socket.socket) -> str:
    """Carries until either side ends, and closes both. Why the link was none of this protocol; empty: it was one.

    `stream` does not block, and is this function's from now on.
    """
    outward = asyncio.create_task(_outward(link, stream), name="link out")
    inward = asyncio.create_task(_inward(link, stream), name="link in")
    try:
        await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
        return inward.result() if inward.done() else ""
    finally:
        for task in (outward, inward):
            task.cancel()
        await asyncio.wait({outward, inward})
        stream.close()
        with contextlib.suppress(OSError, RuntimeError):
            await asyncio.shield(link.close())


async def _outward(link: LinkSocket, stream: socket.socket) -> None:
    """Returns when the stream has ended, or the link takes nothing more."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # of either side; a closed link raises one, too
        while piece := await loop.sock_recv(stream, PIECE_BYTES):
            await link.send_bytes(piece)


async def _inward(link: LinkSocket, stream: socket.socket) -> str:
    """Returns when the link has ended. A stream that takes nothing more may still have an answer to give."""
    loop, open_ = asyncio.get_running_loop(), True
    while True:
        message = await link.receive()
        if message.type is WSMsgType.BINARY:
            if open_:
                try:
                    await loop.sock_sendall(stream, message.data)
                except OSError:
                    open_ = False
        elif message.type is WSMsgType.TEXT:
            return "a text message on a link"
        elif message.type is WSMsgType.ERROR and isinstance(message.data, WebSocketError):
            return f"a link's message that is none: {message.data}"
        else:
            return ""
