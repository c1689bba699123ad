"""Which Redis a command looks at, where none is named."""

import argparse
import os
from pathlib import Path

import pytest

from prorl_mq import local_token
from prorl_mq.cli.arguments import parse
from prorl_mq.cli.local.place import left, listening, redis_of
from prorl_mq.cli.reaching import reach
from prorl_mq.errors import ConfigurationError
from prorl_mq.local_token import URL
from prorl_mq.store.server.connection import RedisSettings


def found(state_dir: Path, *, redis: str | None = None, namespace: str = "prorl") -> tuple[str, str]:
    settings = redis_of(argparse.Namespace(redis=redis, namespace=namespace, state_dir=state_dir))
    return settings.url, settings.namespace


def test_a_service_on_a_given_redis_is_found_in_its_directory(tmp_path: Path) -> None:
    with left(tmp_path, RedisSettings(url="redis://user:secret@db:6379/1", namespace="mine")):
        assert found(tmp_path) == ("redis://db:6379/1", "mine")
        assert found(tmp_path, namespace="other") == ("redis://db:6379/1", "other")
        assert found(tmp_path, redis="redis://else") == ("redis://else", "prorl")
        assert "secret" not in "".join(path.read_text() for path in tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match="no service runs in"):
        found(tmp_path)


@pytest.mark.anyio
async def test_an_api_is_found_in_the_directory_of_its_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up --port 0`, or another port than the usual one: its token was found, and the address was not."""
    monkeypatch.setenv("PRORL_STATE", str(tmp_path))

    async def reached(*words: str) -> str:
        async with reach(parse(words)) as client:
            return client.url

    job, logs = ("job", "r:g:0"), ("logs", "r:g:0", "--state-dir", str(tmp_path))
    with listening(tmp_path, "http://127.0.0.1:4711"):
        assert [await reached(*job), await reached(*logs)] == ["http://127.0.0.1:4711"] * 2
        assert await reached(*job, "--url", "http://127.0.0.1:1") == "http://127.0.0.1:1"
        monkeypatch.setenv("PRORL_URL", "http://127.0.0.1:2")
        assert await reached(*job) == "http://127.0.0.1:2"
        monkeypatch.delenv("PRORL_URL")
    assert await reached(*job) == URL


def test_a_service_with_its_own_server_forgets_the_one_before(tmp_path: Path) -> None:
    """What a killed one left behind."""
    (tmp_path / "redis.json").write_text('{"url": "redis://old", "namespace": "prorl"}')
    with left(tmp_path, None), pytest.raises(ConfigurationError):
        found(tmp_path)


@pytest.mark.parametrize("mode", [0o644, 0o664, 0o646])
def test_an_address_that_others_may_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    """Prompts and tokens are sent there. The first one is the control, and what `up` writes under any umask."""
    before = os.umask(0)
    try:
        with listening(tmp_path, "http://127.0.0.1:4711"):
            file = tmp_path / local_token.ADDRESS
            assert file.stat().st_mode & 0o777 == 0o644
            file.chmod(mode)
            assert local_token.address(tmp_path) == ("http://127.0.0.1:4711" if mode == 0o644 else URL)
    finally:
        os.umask(before)


def test_an_address_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(tmp_path, "http://127.0.0.1:4711"):
        monkeypatch.setattr(os, "geteuid", lambda: 4_294_967)
        assert local_token.address(tmp_path) == URL
