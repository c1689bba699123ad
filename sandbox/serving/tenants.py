"""The services that may use a sandbox server, by their tokens. Each sees its own sandboxes, and no others."""

import hmac
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandbox.errors import SandboxUnavailable

LINE: Final = re.compile(r"([A-Za-z0-9_.-]{1,64})\s+([\x21-\x7e]{16,512})")


def tenants_in(path: Path) -> Mapping[str, str]:
    """Token of each name: lines NAME TOKEN, and comments after `#`. Raises `SandboxUnavailable`, without a token."""
    try:
        with path.open(encoding="ascii") as file:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise SandboxUnavailable(f"{path} can be read by others: chmod 600 it")
            lines = file.read().splitlines()
    except (OSError, UnicodeError) as error:
        raise SandboxUnavailable(f"the tokens cannot be read: {path}: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        matched = LINE.fullmatch(text)
        if matched is None or matched[1] in found or matched[2] in found.values():
            raise SandboxUnavailable(
                f"{path}, line {number}: write a NAME and a TOKEN of 16 characters or more, both of which no other "
                "line has"
            )
        found[matched[1]] = matched[2]
    if not found:
        raise SandboxUnavailable(f"{path} has no token: write a line NAME TOKEN for each service")
    return found


def tenant_of(header: str, tenants: Mapping[str, str]) -> str | None:
    """The one whose token an Authorization header bears. Takes as long for each wrong one."""
    given = header.removeprefix("Bearer ").encode("utf-8", "replace")
    matches = [name for name, token in tenants.items() if hmac.compare_digest(token.encode(), given)]
    return matches[0] if matches and header.startswith("Bearer ") else None
