"""Prints the table of proved models, which docs/reference/formats.md has: `make test-formats`."""

from collections.abc import Iterator

from tests.formats.models import MODELS

HEADER = ("format", "model", "calls", "old thoughts", "template", "SHA-256 of the template")


def lines() -> Iterator[str]:
    """The table in Markdown."""
    yield f"| {' | '.join(HEADER)} |"
    yield f"|{'---|' * len(HEADER)}"
    for known in MODELS:
        cells = [f"`{known.format}`", known.name, known.call, known.thinking, f"{known.package}, `{known.file}`"]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in [*cells, f"`{known.sha256}`"]) + " |"


if __name__ == "__main__":
    print("\n".join(lines()))
