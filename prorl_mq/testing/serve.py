"""Runs a fake backend as a process of its own, until SIGTERM or SIGINT."""

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prorl_mq.settings import Setting, add
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import ReplyFunction, pseudo_random, scripted

SETTINGS: Final = (
    Setting("--port", "port on loopback, 0 takes a free one", type=int, default=0),
    Setting("--latency-ms", "duration of every request", type=float, default=0.0, unit="ms"),
    Setting("--token-ms", "duration of every sampled token, on top", type=float, default=0.0, unit="ms"),
    Setting("--slots", "requests that run at a time, more of them wait; else any", type=int),
    Setting("--model", "the name of the model that it serves", default="policy"),
    Setting("--text", "what it says; again for the following turns of a conversation", again=True),
    Setting("--tokenizer", "tokenizer.json for --text, or its directory; else one id per UTF-8 byte", type=Path),
    Setting("--end-id", "id after every reply: the model's end of turn", type=int),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prorl_mq.testing.fake_backend",
        description="An inference backend without a model. Prints its address, then serves on loopback.",
    )
    add(parser, SETTINGS, {})
    return parser


def _encode(texts: Sequence[str], tokenizer: Path | None, end_id: int | None) -> list[list[int]]:
    end = [] if end_id is None else [end_id]
    if tokenizer is None:
        return [[*text.encode(), *end] for text in texts]
    from tokenizers import Tokenizer

    model = Tokenizer.from_file(str(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer))
    return [[*model.encode(text, add_special_tokens=False).ids, *end] for text in texts]


def _reply(options: argparse.Namespace) -> ReplyFunction:
    if options.text:
        return scripted(_encode(options.text, options.tokenizer, options.end_id))
    return pseudo_random(end_id=options.end_id)


async def _serve(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    backend = FakeBackend(
        reply=_reply(options),
        model=options.model,
        latency_ms=options.latency_ms,
        token_ms=options.token_ms,
        log_limit=1000,
        slots=options.slots,
    )
    await backend.start(options.port)
    print(backend.address, flush=True)
    await stopped.wait()
    await backend.stop()


def main() -> None:
    """Command line."""
    asyncio.run(_serve(_parser().parse_args()))
