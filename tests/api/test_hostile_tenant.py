"""A tenant that wants what another tenant has: requests made up from the OpenAPI document, with
the victim's names wherever a name stands.

The control sends the same requests with the victim's token, and finds everything.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec.structs import replace
from schemathesis import GenerationMode

from api.openapi import document
from api.operations import Operation
from api.routes import OPERATIONS
from prorl_mq.schema.trajectory import Turn
from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import TRAJECTORY, Worker, batch
from tests.api.threaded import threaded

pytestmark = pytest.mark.filterwarnings(
    "ignore::hypothesis.errors.HypothesisDeprecationWarning"
)  # of schemathesis itself
EXAMPLES: Final = int(os.environ.get("HOSTILE_EXAMPLES", "3"))  # of each operation; `make test-security` makes more
TOKENS: Final = {name: f"token-of-{name}" for name in ("victim", "mallory", "eve")}
# What is the victim's, and stands in nothing that the other one knows or sends.
SECRETS: Final = {
    "prompt": "vic-prompt-9d1c", "answer": "vic-answer-77aa", "said": "vic-said-31bf", "note": "vic-note-5e02",
    "backend": "192.0.2.77", "token": TOKENS["victim"], "digest": hashlib.sha256(b"token-of-victim").hexdigest(),
}  # fmt: skip
# Names, which a made-up request has as well: mallory may have things of her own by then that are called so.
NAMES: Final = {"run": "vic-run", "batch": "vic-batch", "pool": "vic-pool"}
BATCH, GROUP = f"{NAMES['run']}:{NAMES['batch']}", f"{NAMES['run']}:{NAMES['batch']}-0"
OWN: Final = "mal-run"  # with groups of both kinds, so that requests get as far as they can
SCHEMA = schemathesis.openapi.from_dict(document(OPERATIONS, version="1", tokens=True))
READS: Final = [
    f"runs/{NAMES['run']}", f"runs/{NAMES['run']}/groups", f"batches/{BATCH}", f"groups/{GROUP}",
    f"jobs/{GROUP}:0/trajectory", f"jobs/{BATCH}-1:0", "pools", f"pools/{NAMES['pool']}/policy",
]  # fmt: skip


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


@pytest.fixture(scope="module")
def url(empty_redis: RedisSettings) -> Iterator[str]:
    """A service on which the victim has one rollout that has ended, one that waits, and a backend."""
    digests = {name: hashlib.sha256(token.encode()).digest() for name, token in TOKENS.items()}
    backends = dict.fromkeys(TOKENS, ("0.0.0.0/0", "[::/0]"))
    with threaded(empty_redis, tokens=digests, backends=backends) as address:
        tasks = batch(NAMES["run"], NAMES["batch"], groups=2, pool=NAMES["pool"])
        for group in tasks["groups"]:
            group["task"]["payload"] = {"question": SECRETS["prompt"], "answer": SECRETS["answer"]}
        with httpx.Client(base_url=f"{address}/v1/", headers=bearer("victim")) as victim:
            backend = {"address": f"http://{SECRETS['backend']}:8000"}
            assert victim.post(f"pools/{NAMES['pool']}/backends", json=backend).status_code == 201
            assert victim.post("batches", json=tasks).status_code == 202
            asyncio.run(_rolled_out(empty_redis))
            while victim.get(f"groups/{GROUP}").json()["summary"]["state"] != "accepted":
                time.sleep(0.02)  # a long poll would take a second client
        with httpx.Client(base_url=f"{address}/v1/", headers=bearer("mallory")) as mallory:
            for name in ("cancelled", "open"):
                assert mallory.post("batches", json=batch(OWN, name, groups=3)).status_code == 202
                if name == "cancelled":
                    assert mallory.post(f"batches/{OWN}:{name}/cancel").is_success
        yield address


async def _rolled_out(settings: RedisSettings) -> None:
    turn = Turn(
        segment=0, prompt_tokens=2, completion_tokens=2, cached_tokens=None, finish_reason="stop", llm_seconds=0.1,
        text=SECRETS["said"],
    )  # fmt: skip
    async with Worker(settings) as worker:
        held = await worker.in_run()
        await worker.finish(held, 1.0, replace(TRAJECTORY, turns=[turn]), note=SECRETS["note"], turns=1)


def state(url: str) -> list[Any]:
    with httpx.Client(base_url=f"{url}/v1/", headers=bearer("victim")) as victim:
        found = [victim.get(path).json() for path in READS]
    return json.loads(json.dumps(found), object_hook=_lasting)  # type: ignore[no-any-return]


def _lasting(found: dict[str, Any]) -> dict[str, Any]:
    """Without what the service's own probes and clocks change."""
    moves = {"age_ms", "checked_ms", "waits_ms", "waited_ms", "why", "in_state_ms", "now_ms", "state", "backends"}
    return {name: each for name, each in found.items() if name not in moves}


def names_of(operation: Operation) -> Any:
    """The victim's names where the path has a place for one, also written in ways that a parser may read otherwise."""
    of = {
        "run": [NAMES["run"]], "pool": [NAMES["pool"]], "batches": [BATCH], "groups": [GROUP],
        "jobs": [f"{GROUP}:0", f"{GROUP}:1"], "runs": [NAMES["run"]],
    }  # fmt: skip
    kind = operation.path.split("/")[2]
    [place] = [each.name for each in operation.parameters if each.where == "path"]
    plain = of[place if place in of else kind]
    of_its_own = {"runs": [OWN], "batches": [f"{OWN}:open"], "groups": [f"{OWN}:open-0"], "jobs": [f"{OWN}:open-0:0"]}
    written = of_its_own.get(kind, []) * 20 + [
        prefix + each + suffix
        for each in plain
        for prefix in ("", "victim:", "../victim:", "mallory:../victim:", "victim%3A", "./", "default:")
        for suffix in ("", "%00", "/", "%2F..", "\n", "*")
    ]
    return st.sampled_from([{place: each} for each in written])


def kinds() -> Iterator[Any]:
    for operation in OPERATIONS:
        if not operation.public:
            yield pytest.param(operation, GenerationMode.POSITIVE, id=f"{operation.id}-right")
            if operation.body or (operation.parameters and EXAMPLES > 3):
                yield pytest.param(operation, GenerationMode.NEGATIVE, id=f"{operation.id}-wrong")


def sent(url: str, operation: Operation, mode: GenerationMode, token: str) -> Iterator[tuple[str, httpx.Response]]:
    """Requests made up for an operation, with what was sent as text, and their answers."""
    strategy = SCHEMA[operation.path][operation.method].as_strategy(generation_mode=mode)
    placed = any(each.where == "path" for each in operation.parameters)
    made: list[tuple[Any, dict[str, str] | None]] = []

    @seed(21_02)
    @examples(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=strategy, places=names_of(operation) if placed else st.none())
    def make(case: Any, places: dict[str, str] | None) -> None:
        made.append((case, places))

    make()
    with httpx.Client(base_url=url, timeout=20, headers=bearer(token)) as client:
        for case, places in made:
            query = case.query if isinstance(case.query, dict) else {}
            query = {name: each for name, each in query.items() if name not in {"wait", "seconds"}} | (
                {"seconds": 0} if operation.id == "watch" else {}
            )
            path = operation.path
            for name, each in (places or case.path_parameters or {}).items():
                path = path.replace(f"{{{name}}}", quote(str(each), safe="%"))
            body = case.body if isinstance(case.body, dict | list | str | int | float | bool | None) else None
            text = json.dumps(body) if operation.body else None
            answer = client.request(
                operation.method, path, params=query, content=text, headers={"Content-Type": "application/json"}
            )
            yield f"{path} {query} {text}", answer


def exact(operation: Operation) -> str:
    """Its path with the victim's names as they are."""
    ids = {"batches": BATCH, "groups": GROUP, "jobs": f"{GROUP}:0", "runs": NAMES["run"]}
    named = ids.get(operation.path.split("/")[2])
    return operation.path.format(run=NAMES["run"], pool=NAMES["pool"], id=named)


def asked(operation: Operation) -> dict[str, str]:
    """What it asks for beside the path."""
    given = {"address": "http://192.0.2.1:80", "q": "vic", "turn": "0", "seconds": "0", "wait": "0"}
    return {each.name: given[each.name] for each in operation.parameters if each.name in given}


@pytest.mark.parametrize(("operation", "mode"), list(kinds()))
def test_no_answer_to_another_tenant_has_anything_of_the_victims_and_none_is_a_fault(
    url: str, operation: Operation, mode: GenerationMode
) -> None:
    before = state(url) if operation.method != "GET" else None
    for request, answer in sent(url, operation, mode, "mallory"):
        assert answer.status_code < 500, (request, answer.text)
        whole = f"{answer.headers}\n{answer.text}"
        assert [name for name, secret in SECRETS.items() if secret in whole] == [], (request, whole)
    assert before is None or state(url) == before


def test_the_control_finds_everything_with_the_victims_own_token(url: str) -> None:
    """But what nobody is shown: what was sent, and tokens."""
    reads = [each for each in OPERATIONS if each.method == "GET" and not each.public]
    with httpx.Client(base_url=url, headers=bearer("victim")) as client:
        found = "".join(client.get(exact(each), params=asked(each)).text for each in reads)
    assert [name for name, secret in SECRETS.items() if secret not in found] == ["prompt", "answer", "token", "digest"]


def test_no_answer_tells_a_third_tenant_what_names_there_are(url: str) -> None:
    """Neither by showing them nor by telling them apart from nothing; she has sent nothing that could be hers."""
    reads = [each for each in OPERATIONS if each.method in {"GET", "DELETE"} and not each.public]
    with httpx.Client(base_url=url, headers=bearer("eve")) as client:
        for operation in reads:
            there, nowhere = (
                client.request(operation.method, path, params=asked(operation))
                for path in (exact(operation), exact(operation).replace("vic-", "nix-"))
            )
            assert there.status_code == nowhere.status_code < 500
            if "{" in operation.path:
                assert there.text.replace("vic-", "nix-") == nowhere.text, operation.path
            else:
                assert [each for each in (*NAMES.values(), OWN, *SECRETS.values()) if each in there.text] == []
