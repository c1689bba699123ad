"""Carries out orders of `prorl-mq replay` and `regrade`, with the task families that are installed here.

python -m workers.rehearsal.orders replay|regrade [TOKENIZER] [--sandbox KIND] [--state-dir DIR]

Orders are lines of JSON on standard input, answers lines of JSON on standard output, in the order of the orders
(`prorl_mq.service.recorded`). What families print goes to standard error.
"""

import argparse
import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from prorl_mq.errors import ProrlError
from prorl_mq.service.recorded import RegradeAnswer, RegradeOrder, ReplayAnswer, ReplayOrder
from prorl_mq.settings import Setting, add
from sandbox.errors import SandboxError
from workers.rehearsal.place import SANDBOX, provider_at
from workers.rehearsal.regrade import Regrading
from workers.rehearsal.replay import replay
from workers.rehearsal.stages import Rehearsal, rehearsing
from workers.settings import STATE_DIR
from workers.stages.registry import Registry, load

Act = Callable[[bytes], Awaitable[msgspec.Struct]]
AT_ONCE: Final = 4  # samples that are scored
SETTINGS = (
    Setting("what", "what the orders ask for", choices=("replay", "regrade")),
    Setting("tokenizer", "directory of the policy's tokenizer, for replay", type=Path, nargs="?", metavar="TOKENIZER"),
    SANDBOX,
    replace(STATE_DIR, help="directory of data", variable=None),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all orders were answered, 2 nothing can be done here."""
    parser = argparse.ArgumentParser(prog="python -m workers.rehearsal.orders", description="Carries out orders.")
    add(parser, SETTINGS, {})
    given = parser.parse_args(argv)
    sys.path.insert(0, "")  # a family beside you need not be installed
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_serve(given, answers))
    except (ProrlError, SandboxError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


async def _serve(given: argparse.Namespace, answers: int) -> None:
    registry = await asyncio.to_thread(load)
    try:
        async with provider_at(given.sandbox, given.state_dir) as provider:
            if given.what == "replay":
                async with rehearsing(provider, given.tokenizer) as rehearsal:
                    await _answer(_replaying(registry, rehearsal), 1, answers)
            else:
                await _answer(_regrading(registry, Rehearsal(provider, Path())), AT_ONCE, answers)
    finally:
        await registry.aclose()


async def _answer(act: Act, at_once: int, answers: int) -> None:
    """Answers in the order of the orders, with some of them under way."""
    under_way: deque[asyncio.Future[msgspec.Struct]] = deque()
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        under_way.append(asyncio.ensure_future(act(line)))
        if len(under_way) == at_once:
            await _write(await under_way.popleft(), answers)
    while under_way:
        await _write(await under_way.popleft(), answers)


async def _write(answer: msgspec.Struct, answers: int) -> None:
    data = msgspec.json.encode(answer) + b"\n"
    while data:
        data = data[await asyncio.to_thread(os.write, answers, data) :]


def _replaying(registry: Registry, rehearsal: Rehearsal) -> Act:
    async def act(line: bytes) -> ReplayAnswer:
        order = msgspec.json.decode(line, type=ReplayOrder)
        try:
            return await replay(registry[order.task.data_source], rehearsal, order)
        except Exception as error:
            return ReplayAnswer(job_id=order.job_id, error=_told(error))

    return act


def _regrading(registry: Registry, rehearsal: Rehearsal) -> Act:
    regrading = Regrading(rehearsal)

    async def act(line: bytes) -> RegradeAnswer:
        order = msgspec.json.decode(line, type=RegradeOrder)
        try:
            return await regrading.score(registry[order.task.data_source], order)
        except Exception as error:
            return RegradeAnswer(job_id=order.job_id, error=_told(error))

    return act


def _told(error: Exception) -> str:
    """Text of what was raised; with its kind where it is not one of ours."""
    ours = isinstance(error, ProrlError) or type(error).__module__.startswith("workers.rehearsal")
    text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    return text if ours or isinstance(error, LookupError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
