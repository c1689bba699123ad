"""The policy's tokenizer on disk: what a process can say about its directory at the start, without loading it."""

from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError

NONE: Final = "none: agents cannot talk to the policy; start again with --tokenizer DIR"
FIX: Final = "save the policy's tokenizer there (`tokenizer.save_pretrained(DIR)`), or name another directory"
_FILES: Final = ("tokenizer_config.json", "tokenizer.json")


def check_directory(directory: Path, option: str) -> None:
    """Raises `ConfigurationError`."""
    if not directory.is_dir():
        raise ConfigurationError(f"{option} {directory}: there is no such directory")
    if not any((directory / name).is_file() for name in _FILES):
        raise ConfigurationError(f"{option} {directory}: it has no {_FILES[0]}; {FIX}")
