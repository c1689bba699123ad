"""The pool of environment workers of verifiers: its own broker, with workers that answer after a short pause.

Prints one line of JSON as `peer_agl.py` does. It runs in its environment.
"""
# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,misc"

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import Any

import zmq
import zmq.asyncio
from verifiers.v1.serve.pool import EnvServerPool

WORKERS, PATIENCE_S = 4, 30.0


class Pool(EnvServerPool):
    """The broker unchanged; only what it starts as a worker is ours."""

    def _spawn_worker(self) -> None:
        place = len(self.workers)
        address = f"ipc://{self._worker_path(place)}"
        process = subprocess.Popen([sys.executable, "-m", "bench.chaos.peer_stub", address])
        dealer = self.ctx.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(address)
        pipe = multiprocessing.Pipe()[0]
        self.workers.append({"process": process, "dealer": dealer, "pipe": pipe, "active": 0, "index": place})
        if self._poller is not None:
            self._poller.register(dealer, zmq.POLLIN)


async def session(kind: str, jobs: int, seconds: float) -> dict[str, Any]:
    pool = Pool({}, WORKERS, "tcp://127.0.0.1:0", elastic=False)
    broker = asyncio.create_task(pool.run())
    while len(pool.workers) < WORKERS:
        await asyncio.sleep(0.05)
    socket = zmq.asyncio.Context().socket(zmq.DEALER)
    socket.connect(pool.address)
    sent: dict[str, float] = {}
    answers: dict[str, list[float]] = {}

    async def receive() -> None:
        while True:
            request, _, _ = await socket.recv_multipart()
            answers.setdefault(request.decode(), []).append(time.monotonic())

    async def send() -> None:
        for number in range(jobs):
            sent[f"j{number}"] = time.monotonic()
            await socket.send_multipart([f"j{number}".encode(), b"run", b""])
            await asyncio.sleep(seconds / jobs)

    receiver, sender = asyncio.create_task(receive()), asyncio.create_task(send())
    while not answers:
        await asyncio.sleep(0.05)
    hurts = []
    while not hurts or not sender.done():
        at = time.monotonic()
        if kind != "worker killed" or len(hurts) < WORKERS - 1:
            hurts.append((at, await hurt(pool, kind, len(hurts))))
        await asyncio.sleep(2.0)
    await sender
    last, since = -1, time.monotonic()
    while len(answers) < jobs and time.monotonic() - since < PATIENCE_S:
        if len(answers) != last:
            last, since = len(answers), time.monotonic()
        await asyncio.sleep(0.2)
    left = sum(worker["active"] for worker in pool.workers)
    recovery = []
    for began, over in hurts:
        hit = [name for name, at in sent.items() if at < began and not any(e <= began for e in answers.get(name, []))]
        late = [max(0.0, answers[name][0] - over) for name in hit if name in answers]
        recovery.append(max(late, default=0.0) if len(late) == len(hit) else None)
    for worker in pool.workers:
        worker["process"].kill()
    receiver.cancel()
    broker.cancel()
    return {
        "jobs": len(sent), "faults": len(hurts), "lost": len(sent.keys() - answers.keys()),
        "duplicated": sum(len(times) - 1 for times in answers.values()), "doubled": 0, "left_over": left,
        "recovery": recovery,
    }  # fmt: skip


async def hurt(pool: Pool, kind: str, number: int) -> float:
    """One worker is killed, the last one excepted, since the pool starts none in its place; or stopped for a while."""
    pid = pool.workers[number % (WORKERS - 1)]["process"].pid
    if kind == "worker killed":
        os.kill(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3.6)
        os.kill(pid, signal.SIGCONT)
    return time.monotonic()


def main() -> None:
    kind, jobs, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(asyncio.run(session(kind, jobs, seconds))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
