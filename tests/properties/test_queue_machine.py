"""Whatever is done to the queue in whatever order, no job is lost, none is in two places, and each group ends once."""

import asyncio
from typing import cast

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.properties.queue_machine import QueueMachine
from tests.support.queue import Queue


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_the_queue_does_what_its_model_says(redis_server: RedisSettings) -> None:
    profile = hypothesis_settings()
    often = hypothesis_settings(profile, max_examples=2 * profile.max_examples)
    with asyncio.Runner() as runner:
        client = connect(redis_server)
        queue = Queue(client, Keys(redis_server.namespace))

        def machine() -> QueueMachine:
            return QueueMachine(runner, queue)

        try:
            run_state_machine_as_test(cast("type[QueueMachine]", machine), settings=often)
        finally:
            runner.run(client.aclose())
