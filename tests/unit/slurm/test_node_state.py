"""The directory on a node's disk lies where everybody may write: nobody else's is ever used."""

import os
from pathlib import Path

import pytest

from prorl_mq.errors import ConfigurationError
from slurm import node_state


def test_it_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "prorl-1" / "d" / "n1"
    node_state.prepare(path, os.getuid())
    node_state.prepare(path, os.getuid())
    assert path.stat().st_mode & 0o777 == 0o755


def test_one_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prorl-1" / "d" / "n1"
    node_state.prepare(path, os.getuid())
    path.parent.parent.chmod(0o777)
    with pytest.raises(ConfigurationError, match="prorl-1 belongs to another user, or others can write to it"):
        node_state.prepare(path, os.getuid())


def test_one_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prorl-1" / "d" / "n1"
    node_state.prepare(path, os.getuid())
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        node_state.prepare(path, os.getuid() + 1)


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "d" / "n1").mkdir(parents=True)
    (tmp_path / "prorl-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="prorl-1 belongs to another user"):
        node_state.prepare(tmp_path / "prorl-1" / "d" / "n1", os.getuid())
