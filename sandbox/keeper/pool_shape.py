"""The properties that make two sandboxes interchangeable."""

import msgspec

from sandbox.lifetime.owner import Owner, OwnerKind
from sandbox.protocol import SandboxLimits, SandboxSpec


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Properties that are fixed when a sandbox starts, beside its owner. Kind and node are the keeper's."""

    image: str | None = None
    network: bool = False
    limits: SandboxLimits = SandboxLimits()

    def spec(self, service: str) -> SandboxSpec:
        """A sandbox of this shape for the pool."""
        owner = Owner(OwnerKind.POOL, service, msgspec.json.encode(self).decode())
        return SandboxSpec(owner=owner.text, image=self.image, network=self.network, limits=self.limits)


def shape_of(spec: SandboxSpec) -> Shape | None:
    """None for a spec that only this one job can have asked for: what it is made with cannot be given later."""
    if spec.mounts or spec.environment or spec.writable or spec.empty or spec.door:
        return None
    return Shape(image=spec.image, network=spec.network, limits=spec.limits)


def shape_in(owner: Owner) -> Shape | None:
    """The shape of a pool's sandbox. None if another version wrote it and it cannot be read."""
    try:
        return msgspec.json.decode(owner.name, type=Shape)
    except msgspec.DecodeError:
        return None
