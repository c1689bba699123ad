"""The command `prorl-api`."""

import os
import sys
from collections.abc import Sequence

import uvloop

from api.config import settings_from
from api.serving import serve
from prorl_mq.errors import ConfigurationError, RedisUnavailable, ServerUnfit
from prorl_mq.process import logs
from prorl_mq.process.collector import calm


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 after a drain, 1 if Redis cannot be used, 2 for a wrong configuration."""
    logs.configure(os.environ)
    try:
        settings = settings_from(sys.argv[1:] if argv is None else argv, os.environ)
        calm()
        started = uvloop.run(serve(settings))
    except ConfigurationError as error:
        print(f"prorl-api: {error}".replace("\n", "\nprorl-api: "), file=sys.stderr)
        return 2
    except (ServerUnfit, RedisUnavailable) as error:
        print(f"prorl-api: {error}", file=sys.stderr)
        return 1
    return 0 if started else 1


if __name__ == "__main__":
    sys.exit(main())
