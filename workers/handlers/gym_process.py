"""The process that runs reasoning-gym: one fork a request, gone when its standard input closes.

    PYTHONHASHSEED=0 python -m workers.handlers.gym_process LISTENING_DESCRIPTOR

It is single-threaded, so that forking is safe, and it never reads a request itself.
"""

import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from workers.handlers.gym_client import Place, Reply, Request

CPU_S = 20
MEMORY_BYTES = 4 << 30  # of address space


def entry(place: Place) -> tuple[Any, Mapping[str, Any]]:
    """The data set and its entry. Raises `LookupError` for a place that does not exist."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if place.name not in DATASETS:
        raise LookupError(f"reasoning-gym has no data set {place.name!r}; it has {', '.join(sorted(DATASETS))}")
    if not 0 <= place.index < place.size:
        raise LookupError(f"index {place.index} is outside a data set of size {place.size}")
    try:
        dataset = create_dataset(place.name, seed=place.seed, size=place.size, **place.config)
    except (TypeError, AssertionError) as error:
        raise LookupError(f"the data set {place.name} does not take this config: {error}") from error
    return dataset, dataset[place.index]


def reply_to(request: Request) -> Reply:
    """A question, a score, or what stands against it."""
    try:
        dataset, found = entry(request.place)
    except LookupError as error:
        return Reply(no_entry=str(error))
    if request.answer is None:
        return Reply(question=found["question"])
    try:
        return Reply(score=float(dataset.score_answer(request.answer, found)))
    except Exception as error:  # scorers raise whatever reading a strange answer leads to
        return Reply(no_score=f"{type(error).__name__}: {error}"[:500])


def serve_one(connection: socket.socket) -> None:
    """In the fork: limits, then one request."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.alarm(2 * CPU_S)
    with connection, connection.makefile("rb") as lines:
        request = msgspec.json.decode(lines.readline(), type=Request)
        connection.sendall(msgspec.json.encode(reply_to(request)) + b"\n")


def main() -> None:
    """Accepts until standard input closes."""
    import reasoning_gym  # noqa: F401  -- loaded once, before any fork

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped by the system
    listener = socket.socket(fileno=int(sys.argv[1]))
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in ready.select()):
            connection, _ = listener.accept()
            if os.fork() == 0:
                try:
                    serve_one(connection)
                finally:
                    os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
