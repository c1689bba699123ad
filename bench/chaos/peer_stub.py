"""A worker of verifiers' pool that answers each request after a short pause, many at a time."""
# mypy: disable-error-code="import-not-found,import-untyped,misc"

import asyncio
import sys

import zmq
import zmq.asyncio

from bench.chaos.peer_marks import WORK_S, mark


async def serve(address: str) -> None:
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    socket.bind(address)

    async def answer(client: bytes, request: bytes) -> None:
        mark("begin", request.decode())
        await asyncio.sleep(WORK_S)
        mark("end", request.decode())
        await socket.send_multipart([client, request, b"reply", b""])

    tasks = set()
    while True:
        client, request, _, _ = await socket.recv_multipart()
        task = asyncio.create_task(answer(client, request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
