"""The page of the direct path names each message with its fields, as its reader takes them."""

import re
import typing
from pathlib import Path

from prorl_mq.schema.intake import IntakeMessage

PAGE = Path(__file__).parents[3] / "docs/reference/direct_path.md"
OF_ALL = {"reply", "schema"}  # which the page tells of all of them


def test_the_page_has_every_message_with_its_fields() -> None:
    kinds = {
        kind.__struct_config__.tag: set(kind.__struct_fields__) - OF_ALL for kind in typing.get_args(IntakeMessage)
    }
    table = PAGE.read_text().partition("| `type` | fields |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table, re.MULTILINE))
    told = {
        name: set(re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", said).partition(";")[0]))
        for name, said in rows.items()
    }
    assert told == kinds
