"""The sandbox that a person means: by its id, by the job that owns it, or by the beginning of either."""

import difflib
from collections.abc import Iterable

from sandbox.errors import SandboxError
from sandbox.lifetime.label import Label
from sandbox.lifetime.owner import parse

NEAR = 5


def find(name: str, labels: Iterable[Label]) -> Label:
    """The one sandbox of that name; where some of several are alive, the living. Raises `SandboxError`."""
    known = list(labels)
    found = [made for made in known if name in _names(made)] or [made for made in known if _begins(made, name)]
    found = [made for made in found if made.alive] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise SandboxError(f"{name!r} may be several sandboxes, give more of an id:\n{_listed(found)}")
    near = _near(name, known)
    told = f"near it are:\n{_listed(near)}" if near else "`python -m sandbox list` shows those of a state directory"
    raise SandboxError(f"there is no sandbox {name!r} here; {told}")


def _names(made: Label) -> tuple[str, ...]:
    owner = parse(made.owner)
    return (made.sandbox_id, owner.name if owner else made.owner)


def _begins(made: Label, name: str) -> bool:
    return bool(name) and any(each.startswith(name) for each in _names(made))


def _near(name: str, known: Iterable[Label]) -> list[Label]:
    named = {each: made for made in known for each in _names(made)}
    return [named[each] for each in difflib.get_close_matches(name, named, NEAR)]


def _listed(found: Iterable[Label]) -> str:
    return "\n".join(f"  {made.sandbox_id}  {made.node}  {made.owner}" for made in found)
