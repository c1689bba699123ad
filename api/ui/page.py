"""The web pages: `/ui`, whose files are in `api/ui`, and `/docs`, which shows the OpenAPI document in Swagger UI.

Each is under a content security policy that admits nothing from elsewhere. The files of Swagger UI are those of the
package offapi. Importing it would read three viewers into memory, so its folder is only located.
"""

import functools
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

FILES: Final = Path(__file__).parent
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# Swagger UI sets styles in its markup and has icons in its style sheet.
VIEWER_HEADERS: Final = HEADERS | {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
VIEWER: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>prorl_mq: HTTP interface</title>
<link rel="icon" href="ui/icon.svg">
<link rel="stylesheet" href="ui/swagger-ui.css">
</head>
<body>
<main id="viewer"></main>
<noscript>This page needs JavaScript. The document that it shows is <a href="openapi.json">openapi.json</a>.</noscript>
<script src="ui/swagger-ui.js"></script>
<script src="ui/viewer.js"></script>
</body>
</html>
"""
BUNDLED: Final = {"swagger-ui.js": "swagger_bundle.js", "swagger-ui.css": "swagger_style.css"}


def routes() -> Sequence[Route]:
    """The page and its files need no token: they hold nothing of anybody. What they show is asked for with one."""
    files = [path for path in sorted(FILES.rglob("*")) if path.suffix in KINDS]
    return [
        Route("/", _to_the_page),
        Route("/ui", _to_the_page),
        Route("/ui/", _sending(functools.partial(Path, FILES / "index.html"))),
        *(
            Route(f"/ui/{path.relative_to(FILES).as_posix()}", _sending(functools.partial(Path, path)))
            for path in files
        ),
        *(Route(f"/ui/{name}", _sending(functools.partial(_bundled, own))) for name, own in BUNDLED.items()),
    ]


def viewer() -> Response:
    """The page at `/docs`."""
    return HTMLResponse(VIEWER, headers=VIEWER_HEADERS)


def _sending(locate: Callable[[], Path]) -> Callable[[Request], Awaitable[Response]]:
    """Answers with a file, which is read at the first request."""

    @functools.cache
    def read() -> tuple[bytes, str, dict[str, str]]:
        path = locate()
        content = path.read_bytes()
        return content, KINDS[path.suffix], HEADERS | {"ETag": f'"{hashlib.sha256(content).hexdigest()[:24]}"'}

    async def send(request: Request) -> Response:
        content, kind, headers = read()
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return send


def _bundled(name: str) -> Path:
    found = find_spec("offapi")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("the package offapi, which has Swagger UI, is missing: install prorl-mq[service]")
    return Path(found.submodule_search_locations[0]) / name


async def _to_the_page(_: Request) -> Response:
    return RedirectResponse("ui/")
