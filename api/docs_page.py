"""The page at `/docs`: the operations of the OpenAPI document as plain HTML, without scripts or outside files."""

from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{background:#8882;padding:.1em .3em;border-radius:3px}section{border-top:1px solid #8884;padding:.5rem 0}"
    "h2{font-size:1.05rem;margin:.3rem 0}ul{margin:.2rem 0}:root{color-scheme:light dark}"
)


def page(document: Mapping[str, Any]) -> str:
    """One section for each operation."""
    sections = "".join(
        _section(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    lead = 'The same as a document: <a href="openapi.json">openapi.json</a>.'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1><p>{lead}</p>{sections}</body></html>'
    )


def _section(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [f"<li><code>{escape(each['name'])}</code> ({escape(each['in'])}): {escape(each['description'])}</li>"
            for each in operation["parameters"]]  # fmt: skip
    if body := operation.get("requestBody"):
        rows.append(f"<li>body: {escape(_named(body))}</li>")
    for status, answer in sorted(operation["responses"].items()):
        said = ": ".join(filter(None, (answer["description"], _named(answer))))
        rows.append(f"<li><code>{escape(status)}</code> {escape(said)}</li>")
    heading = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>{heading}<p>{escape(operation['summary'])}</p><ul>{''.join(rows)}</ul></section>"


def _named(part: Mapping[str, Any]) -> str:
    for content in part.get("content", {}).values():
        reference: str = content.get("schema", {}).get("$ref", "")
        return reference.rpartition("/")[2]
    return ""
