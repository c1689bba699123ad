"""The vocabulary that pages show tokens with: of the directory that `PRORL_TOKENIZER` names, as it does for workers."""

import asyncio
import functools
import logging
import os
from pathlib import Path
from typing import Final

from prorl_mq.converters.vocabulary import Vocabulary, read
from prorl_mq.errors import ConfigurationError

VARIABLE: Final = "PRORL_TOKENIZER"


@functools.cache
def vocabulary() -> Vocabulary | None:
    """Read once; None where none is named, or what is named cannot be read: tokens are shown as ids then."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    try:
        return read(Path(directory))
    except ConfigurationError as error:
        logging.getLogger("api").warning("%s: %s; pages show tokens as ids", VARIABLE, error)
        return None


async def loaded() -> Vocabulary | None:
    """The same, read in a thread."""
    return await asyncio.to_thread(vocabulary)
