"""What is said while a job is worked on names the job."""

import asyncio
import json
import logging
import subprocess
import sys

import pytest

from prorl_mq.process import logs
from prorl_mq.schema.ids import JobRef

SAY = """
import logging, os
from prorl_mq.process import logs
logs.configure(os.environ)
logging.getLogger("workers").info("begun")
logs.about("acme:r:g:0", 2, "run")
logging.getLogger("workers").info("sampled tokens=%d", 3)
"""
JOB = {"run": "r", "group": "g", "job": "r:g:0", "attempt": 2, "stage": "run"}


def said(**env: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SAY], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr.splitlines()


@pytest.mark.process
def test_each_json_line_is_one_object_with_the_job() -> None:
    begun, sampled = (json.loads(line) for line in said(PRORL_LOG="info", PRORL_LOG_FORMAT="json"))
    assert "job" not in begun
    assert sampled.pop("time").endswith("+00:00")
    assert sampled == {"level": "INFO", "logger": "workers", "message": "sampled tokens=3", **JOB}


@pytest.mark.process
def test_text_names_the_job_as_well_and_the_level_holds() -> None:
    assert said(PRORL_LOG="info")[1].endswith("workers sampled tokens=3 run=r group=g job=r:g:0 attempt=2 stage=run")
    assert said() == []


@pytest.mark.anyio
async def test_jobs_side_by_side_do_not_get_each_others_names() -> None:
    made = logging.LogRecord("workers", logging.INFO, "", 1, "said", None, None)
    both = asyncio.Barrier(2)

    async def work(job: JobRef) -> str:
        logs.about(job, 0, "run")
        await both.wait()
        told: str = json.loads(logs.Json().format(made))["job"]
        return told

    assert await asyncio.gather(work(JobRef("acme:r:g:0")), work(JobRef("acme:r:g:1"))) == ["r:g:0", "r:g:1"]
    assert "job" not in json.loads(logs.Json().format(made))
