"""The page and its answers on one loopback port, for who opens a file: it reads, and nothing can be changed."""

import asyncio
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from api import problems
from api.hosts import OwnPages
from api.problems import Problem
from api.ui import page
from api.viewing.answers import FileAnswers
from api.viewing.sources import Source
from prorl_mq.archive.table import ArchiveDamaged
from prorl_mq.errors import ConfigurationError, ProrlError

MARK = b'<meta name="prorl-view" content="files">\n</head>'  # tells the page that there is no service behind it


def viewer(source: Source) -> Starlette:
    """The application. FileAnswers are made in a thread, one at a time."""
    answers, turn = FileAnswers(source), asyncio.Lock()

    async def answer(request: Request) -> Response:
        parts = [unquote(part) for part in request.scope["raw_path"].decode().split("/")[2:]]
        async with turn:
            try:
                made = await asyncio.to_thread(answers.answer, parts, request.query_params)
            except ValueError as error:
                raise Problem(422, str(error)) from None
            except (ArchiveDamaged, ConfigurationError) as error:
                raise Problem(503, str(error)) from None
            except OSError as error:
                raise Problem(
                    503, f"{error.filename or 'the file'} cannot be read: {error.strerror or error}"
                ) from None
        return Response(msgspec.json.encode(made), media_type="application/json")

    async def index(_: Request) -> Response:
        return Response(marked(), media_type="text/html; charset=utf-8", headers=page.HEADERS)

    async def to_the_page(_: Request) -> Response:
        return RedirectResponse("/ui/")

    files = [route for route in page.routes() if getattr(route, "path", "") != "/ui/"]
    return Starlette(
        routes=[Route("/", to_the_page), Route("/ui/", index), *files, Route("/v1/{rest:path}", answer)],
        middleware=[Middleware(OwnPages, host="127.0.0.1")],
        exception_handlers=dict.fromkeys((Problem, ProrlError, OSError, Exception), problems.answer),
    )


def marked() -> bytes:
    """The page's document, which says that it is over files."""
    return (page.FILES / "index.html").read_bytes().replace(b"</head>", MARK)
