"""The web page at `/ui`: the files in `api/ui`, under a content security policy that admits nothing else."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

FILES: Final = Path(__file__).parent / "ui"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
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


def routes() -> Sequence[Route]:
    """The page and its files need no token: they hold nothing of anybody. What they show is asked for with one."""
    files = [_route(path) for path in sorted(FILES.rglob("*")) if path.suffix in KINDS]
    return [Route("/ui", _to_the_page), Route("/ui/", _sending(FILES / "index.html")), *files]


def _route(path: Path) -> Route:
    return Route(f"/ui/{path.relative_to(FILES).as_posix()}", _sending(path))


def _sending(path: Path) -> Callable[[Request], Awaitable[Response]]:
    content, kind = path.read_bytes(), KINDS[path.suffix]
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'

    async def send(request: Request) -> Response:
        headers = HEADERS | {"ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return send


async def _to_the_page(_: Request) -> Response:
    return RedirectResponse("ui/")
