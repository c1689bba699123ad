"""A directory that a sandbox shares with its host: a server on the host puts its socket there.

A sandbox has no network; what its programs may reach beside files is behind this door. The directory belongs to the
sandbox and is named in its label, so that whoever destroys the one removes the other.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sandbox.host.reachable import reachable_place
from sandbox.lifetime import label
from sandbox.protocol import Mount, SandboxSpec

INSIDE = "/opt/prorl-door"


def opened(state_dir: Path, spec: SandboxSpec, directory: Path, made: label.Label) -> label.Label:
    """The label with the door's directory; it is written before the directory exists."""
    if not spec.door:
        return made
    # A name that nobody can guess, below a directory that is not listed: other users of this machine pass by.
    place = reachable_place(state_dir / "doors")
    place.chmod(0o711)
    made = msgspec.structs.replace(made, door=str(place / secrets.token_hex(8)))
    label.write(directory, made)
    Path(made.door).mkdir(mode=0o711)
    return made


def mounts(spec: SandboxSpec, made: label.Label) -> Sequence[Mount]:
    """Mounts of the sandbox. Read-only suffices to connect to a socket."""
    return (*spec.mounts, Mount(source=made.door, target=INSIDE)) if made.door else spec.mounts
