"""Whatever is done to the queue in whatever order: no job is lost or runs in two places, and each group ends once."""

import asyncio

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from prorl_mq.connection import RedisSettings, connect
from prorl_mq.keys import Keys
from tests.properties.queue_machine import QueueMachine
from tests.support.queue import Queue


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_queue_does_what_its_model_says(redis_server: RedisSettings) -> None:
    with asyncio.Runner() as runner:
        client = connect(redis_server)
        queue = Queue(client, Keys(redis_server.namespace))
        try:
            run_state_machine_as_test(  # type: ignore[no-untyped-call]
                lambda: QueueMachine(runner, queue),
                settings=hypothesis_settings(max_examples=2 * hypothesis_settings().max_examples),
            )
        finally:
            runner.run(client.aclose())
