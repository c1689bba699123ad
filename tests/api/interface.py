"""The interface as callers see it, without its prose, as lines that a diff shows well.

python -m tests.api.interface    # writes tests/api/interface.txt
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api.openapi import document
from api.routes import OPERATIONS

FILE = Path(__file__).with_suffix(".txt")
PROSE = {"description", "summary", "title", "tags"}


def described() -> str:
    """Operations with their parameters, bodies and answers, then the schemas."""
    made = document(OPERATIONS, version="", tokens=True)
    return "\n".join(lines(made)) + "\n"


def lines(made: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in sorted(made["paths"].items()):
        for method, operation in sorted(methods.items()):
            yield f"{method.upper()} {path} {operation['operationId']}{'' if 'security' in operation else ' (public)'}"
            parameters = [(each["in"], each["name"], each) for each in operation["parameters"]]
            yield from (f"  {where} {name} {_plain(rest)}" for where, name, rest in sorted(parameters, key=str))
            if "requestBody" in operation:
                yield f"  body {_plain(operation['requestBody'])}"
            answers = sorted(operation["responses"].items())
            yield from (f"  {status} {_plain(answer['content'])}" for status, answer in answers if status < "400")
            yield f"  errors {' '.join(status for status, _ in answers if status >= '400')}"
    for name, schema in sorted(made["components"]["schemas"].items()):
        rest = {key: value for key, value in schema.items() if key != "properties"}
        yield f"{name} {_plain(rest)}"
        yield from (f"  {field} {_plain(about)}" for field, about in sorted(schema.get("properties", {}).items()))


def _plain(part: Any) -> str:
    return json.dumps(_without_prose(part), sort_keys=True)


def _without_prose(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_prose(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {key: _without_prose(value) for key, value in part.items() if key not in PROSE or isinstance(value, dict)}


if __name__ == "__main__":
    FILE.write_text(described())
