"""Checks an address for rollouts: samples a token in each protocol until one works, and says which.

python -m workers.inference ADDRESS
"""

import argparse
import asyncio
import os
import sys

from prorl_mq.errors import ConfigurationError
from prorl_mq.process.backend_keys import keys_from
from prorl_mq.settings import Setting, add
from workers.inference import logprobs
from workers.inference.clients import InferenceClients
from workers.inference.logprobs import LogprobMode
from workers.inference.probe import Probed, probe
from workers.inference.protocol import InferenceError

WITHIN_S = 30.0
SETTINGS = (Setting("address", "http://HOST:PORT"),)


def told(found: Probed) -> str:
    """The probe's findings, in a line."""
    words = [f"speaks {found.info.protocol}"]
    if found.server:
        words.append(found.server)
    if found.models:
        words.append(f"serves {', '.join(found.models)}")
    if found.version is not None:
        words.append(f"weights {found.version}")
    if wrong := logprobs.told(found.info.logprobs):
        words.append(wrong)
    return "; ".join(words)


async def look(address: str) -> int:
    """Exit code 1 for an address that cannot be used."""
    try:
        keys = keys_from(os.environ)
    except ConfigurationError as error:
        print(error)
        return 1
    async with InferenceClients(answer_s=WITHIN_S, keys=keys) as clients:
        try:
            found = await probe(clients, address, within_s=WITHIN_S)
        except InferenceError as error:
            print(error)
            return 1
    print(told(found))
    return 0 if found.info.logprobs is not LogprobMode.RAW else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m workers.inference", description="What a backend is.")
    add(parser, SETTINGS, {})
    sys.exit(asyncio.run(look(parser.parse_args().address)))
