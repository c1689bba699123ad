"""The client process of a system: reads one JSON request a line from standard input, answers one a line.

    python -m bench.queue.client MODULE

MODULE has `client()`, which calls `serve` or `serve_async` with its library's way to enqueue. It is a process of its
own so that its CPU time is nobody else's, and so that it runs in the library's environment; standard library alone.
"""

import asyncio
import contextlib
import importlib
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench.queue import probe

CONCURRENCY = 50
GAP_S = 0.01  # between two latency jobs: the workers become idle again
TIMEOUT_S = 10.0
LATENCY_BUDGET_S = 8.0  # a slow system gives fewer samples, not a longer run
Request = dict[str, Any]


def answer(**figures: Any) -> None:
    sys.stdout.write("ANSWER " + json.dumps(figures) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def latency_socket() -> Iterator[socket.socket]:
    """Where the last handler sends how long its job took."""
    path = Path(probe.LATENCY_SOCKET)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        try:
            yield receiver
        finally:
            path.unlink()


def latency(enqueue: Callable[[float, str], Any], jobs: int) -> list[float]:
    """One job after the other, each sent when the one before is through."""
    seconds: list[float] = []
    until = time.perf_counter() + LATENCY_BUDGET_S
    with latency_socket() as receiver:
        receiver.settimeout(TIMEOUT_S)
        while len(seconds) < jobs and time.perf_counter() < until:
            enqueue(time.perf_counter(), probe.PAYLOAD)
            seconds.append(probe.ELAPSED.unpack(receiver.recv(8))[0])
            time.sleep(GAP_S)
    return seconds


def serve(enqueue: Callable[[float, str], Any]) -> None:
    """Client of a library with a blocking API: one call a job."""
    answer(ready=True)
    for line in sys.stdin:
        request: Request = json.loads(line)
        if request["do"] == "submit":
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(request["jobs"]):
                enqueue(0.0, probe.PAYLOAD)
            answer(seconds=time.perf_counter() - wall, cpu_s=time.process_time() - cpu, requests=request["jobs"])
        else:
            answer(latency_s=latency(enqueue, request["jobs"]))


async def submit_one_by_one(enqueue: Callable[[float, str], Awaitable[Any]], jobs: int) -> int:
    for start in range(0, jobs, CONCURRENCY):
        await asyncio.gather(*[enqueue(0.0, probe.PAYLOAD) for _ in range(min(CONCURRENCY, jobs - start))])
    return jobs


async def latency_async(enqueue: Callable[[float, str], Awaitable[Any]], jobs: int) -> list[float]:
    """As `latency`."""
    loop, seconds = asyncio.get_running_loop(), list[float]()
    until = time.perf_counter() + LATENCY_BUDGET_S
    with latency_socket() as receiver:
        receiver.setblocking(False)
        while len(seconds) < jobs and time.perf_counter() < until:
            await enqueue(time.perf_counter(), probe.PAYLOAD)
            async with asyncio.timeout(TIMEOUT_S):
                seconds.append(probe.ELAPSED.unpack(await loop.sock_recv(receiver, 8))[0])
            await asyncio.sleep(GAP_S)
    return seconds


async def to_records(record: Callable[[], Awaitable[float]], jobs: int) -> list[float]:
    """As `latency`, until each job's record is in the client's hands."""
    seconds, until = list[float](), time.perf_counter() + LATENCY_BUDGET_S
    while len(seconds) < jobs and time.perf_counter() < until:
        async with asyncio.timeout(TIMEOUT_S):
            seconds.append(await record())
        await asyncio.sleep(GAP_S)
    return seconds


async def serve_async(
    enqueue: Callable[[float, str], Awaitable[Any]],
    bulk: Callable[[int], Awaitable[int]] | None = None,
    record: Callable[[], Awaitable[float]] | None = None,
) -> None:
    """Client of a library with an asyncio API. `bulk(jobs)` enqueues many and returns the requests that took; `record`
    enqueues one and returns the seconds until its record was there.
    """
    answer(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request: Request = json.loads(line)
        if request["do"] == "submit":
            wall, cpu = time.perf_counter(), time.process_time()
            requests = await (bulk(request["jobs"]) if bulk else submit_one_by_one(enqueue, request["jobs"]))
            answer(seconds=time.perf_counter() - wall, cpu_s=time.process_time() - cpu, requests=requests)
        elif request["do"] == "records" and record is not None:
            answer(latency_s=await to_records(record, request["jobs"]))
        else:
            answer(latency_s=await latency_async(enqueue, request["jobs"]))


if __name__ == "__main__":
    # Imported under the name it has in the workers: libraries name tasks after their module.
    importlib.import_module(sys.argv[1]).client()
