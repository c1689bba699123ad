"""Values on the command line: each function turns a text into one, and says what is wrong with it."""

import argparse
import contextlib

from prorl_mq.schema.status import LONGEST_PAUSE_MS


def count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 1024")
    return int(text)


def pause_seconds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LONGEST_PAUSE_MS // 1000:
        most = LONGEST_PAUSE_MS // 1000
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of seconds from 1 to {most}, 30 days")
    return int(text)


def whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def quota(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor none")
    return int(text)


def share(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.0 <= (value := float(text)) <= 1.0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)
