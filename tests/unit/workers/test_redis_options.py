"""The address of Redis on the command line of workers."""

import argparse

import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.settings import add
from workers.redis_options import REDIS_SETTINGS, redis_settings


def given(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add(parser, REDIS_SETTINGS, {})
    return parser.parse_args(words)


@pytest.mark.parametrize(("outage_ms", "taken"), [("0", True), ("3599999", True), ("3600000", False), ("-1", False)])
def test_no_worker_waits_for_redis_until_its_payloads_may_have_been_collected(outage_ms: str, taken: bool) -> None:
    """After half of the time that a file without a name is kept, its commit could name one that is gone."""
    if taken:
        assert redis_settings(given("--outage-ms", outage_ms), {}).outage_ms == int(outage_ms)
    else:
        with pytest.raises(ConfigurationError, match=f"--outage-ms is {outage_ms}, and less than an hour is needed"):
            redis_settings(given("--outage-ms", outage_ms), {})
