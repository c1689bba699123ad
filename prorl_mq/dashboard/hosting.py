"""rq-dashboard's unmodified blueprint in a Flask app of ours that never unpickles and lets no script in."""

import secrets
from typing import Any, Final
from urllib.parse import quote

import rq.serializers
from flask import Flask, Response
from rq.serializers import JSONSerializer

from prorl_mq.store.server.beat import threaded
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.server.rendezvous import first

NOTICES: Final = "/prorl/notices.js"  # shows what a button's answer says
ANSWER_S: Final = 5.0  # how long the mirror may take to answer the page
_INLINE: Final = b'<script type="text/javascript">'
_NONCE_BYTES: Final = 16


def rq_dashboard_app(mirror: RedisSettings) -> Flask:
    """Flask's app. Everything in this process that would unpickle reads JSON instead."""
    rq.serializers.PickleSerializer = JSONSerializer  # type: ignore[assignment]  # what rq falls back to
    from rq_dashboard import default_settings, web

    config: Any = web.config
    config.serializer = JSONSerializer
    app = Flask("prorl_mq.dashboard", static_folder=None)
    app.config.from_object(default_settings)
    app.config["RQ_DASHBOARD_REDIS_URL"] = _with_credentials(mirror)
    if mirror.moves:  # it makes its clients, of one server each, by this name
        web.from_url = lambda *_, **__: (None, threaded(mirror, timeout_s=ANSWER_S))
    web.setup_rq_connection(app)
    app.register_blueprint(web.blueprint, url_prefix="")
    app.add_url_rule("/favicon.ico", endpoint="static", view_func=lambda **_: ("", 404))  # the pages name one
    app.after_request(_guarded)
    return app


def _guarded(response: Response) -> Response:
    """The page's own scripts carry a number that nobody can guess; no other script runs. Its templates need eval."""
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    if response.mimetype == "text/html" and not response.direct_passthrough:
        tag = f'<script nonce="{nonce}" type="text/javascript">'.encode()
        notices = f'<script src="{NOTICES}"></script></body>'.encode()
        response.set_data(response.get_data().replace(_INLINE, tag).replace(b"</body>", notices))
    response.headers["Content-Security-Policy"] = (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return response


def _with_credentials(redis: RedisSettings) -> str:
    """The address that rq-dashboard makes its client from; where the server may move, it gets one of ours instead."""
    url = first(redis.named)
    scheme, _, rest = url.partition("://")
    if not redis.password:
        return url
    user = quote(redis.username or "default", safe="")
    return f"{scheme}://{user}:{quote(redis.password, safe='')}@{rest.rpartition('@')[2]}"
