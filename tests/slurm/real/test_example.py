"""The example of `examples/slurm`, followed as the guide says, with a node that dies in the middle."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from slurm import spec_file
from slurm.layout import job_name
from tests.agent.chat import MARKERS, TOOLED, tokenizer
from tests.slurm.real.cluster import ROOT, Cluster
from tests.slurm.real.work import WITHIN_S
from tests.support.service import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1200), pytest.mark.xdist_group("slurm")]
SAMPLES = 6


async def test_the_demos_tasks_run_over_three_nodes_though_one_dies(cluster: Cluster) -> None:
    """Every sample comes back once, with the outcome that the handlers gave it."""
    place = cluster.root.parent / "e"
    shutil.rmtree(place, ignore_errors=True)  # of a run that was repeated
    shutil.copytree(ROOT / "examples" / "slurm", place / "examples" / "slurm")
    tokenizer(TOOLED, MARKERS).save_pretrained(place / "tokenizer")
    spec, shared, out = place / "examples/slurm/cluster.toml", place / ".state/slurm/demo", place / "out.jsonl"
    # A small policy asks for a tool until its turns are over. It stands still until each of the nodes has begun a
    # rollout: two nodes might be through with all of them before the third has started.
    text = '<tool_call>\\n{"name": "execute_bash", "arguments": {"command": "sleep 1"}}\\n</tool_call>'
    changed = spec.read_text().replace("The answer is <answer>7</answer>", text.replace('"', '\\"'))
    changed = changed.replace("[defaults]", f'scratch = "{place}/scratch"\n[defaults]', 1)
    for server in ("[redis]", "[api]", "[backends.policy]"):  # the node that dies has workers alone
        changed = changed.replace(server, f'{server}\nsbatch = ["--nodelist=n1"]')
    spec.write_text(changed)
    env = cluster.env | {"PRORL_TOKENIZER": str(place / "tokenizer"), "PRORL_LEASE_MS": "15000"}
    slurm = [sys.executable, "-m", "slurm"]
    dying: list[str] = []
    still: list[str] = []
    submit = [sys.executable, "-c", "import sys; from prorl_mq.cli import main; sys.exit(main())", "submit"]
    submit += [str(ROOT / "examples/demo_tasks.jsonl"), "--n", str(SAMPLES), "--out", str(out)]
    submit += ["--url", str(shared / "rendezvous/trainer.json"), "--sampling", "max_turns=3", "max_context_tokens=4096"]
    submitted = await asyncio.create_subprocess_exec(*slurm, "submit", "--spec", str(spec), env=env, cwd=ROOT)
    assert await submitted.wait() == 0
    trainer = await asyncio.create_subprocess_exec(*submit, env=env, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        try:
            await until(lambda: all_busy(shared, dying, still), within_s=WITHIN_S)
        except TimeoutError:
            logs = "\n".join(f"== {log.name}\n{log.read_text()[-2000:]}" for log in (shared / "logs").iterdir())
            if trainer.returncode is not None:
                logs += (await trainer.communicate())[1].decode()
            pytest.fail(f"not all nodes were busy at once; the policy is {still}\n{logs}")
        cluster.admin("lose", *dying)
        for address in still:
            await tell(address, "resume")
        _, said = await asyncio.wait_for(trainer.communicate(), 300)
        assert trainer.returncode == 0, said
        samples = [json.loads(line) for line in out.read_text().splitlines()]
        kept = [sample for sample in samples if not sample.get("replaced")]
        assert Counter(sample["task_id"] for sample in kept) == dict.fromkeys({s["task_id"] for s in kept}, SAMPLES)
        assert len(kept) == 8 * SAMPLES
        bad = [(s["outcome"], s.get("error")) for s in samples if s["outcome"] == "infra_error"]
        assert {sample["outcome"] for sample in kept} <= {"completed", "truncated", "agent_error"}, bad
        assert len({sample["node"] for sample in kept}) >= 2
    finally:
        if trainer.returncode is None:
            trainer.kill()
            await trainer.wait()
        cancel = await asyncio.create_subprocess_exec(*slurm, "cancel", "--spec", str(spec), env=env, cwd=ROOT)
        assert await cancel.wait() == 0
        mark = f"SLURM_JOB_NAME={job_name(spec_file.read(spec), 'node')}"
        cluster.until(lambda: not cluster.processes(mark), "the workers are gone")
        for node in dying:
            cluster.admin("node", node)
            cluster.until(lambda node=node: cluster.node_state(node) in {"idle", "mixed"}, f"{node} is back")  # type: ignore[misc]


async def tell(address: str, what: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(f"{address}/{what}")).raise_for_status()


async def all_busy(shared: Path, dying: list[str], still: list[str]) -> bool:
    """Each of the three nodes holds a job in RUN; the last one is to die. `still`: the policy, which answers nobody."""
    file = shared / "rendezvous" / "viewer.json"
    if not file.exists():
        return False
    redis = connect(RedisSettings(rendezvous=file), connections=1)
    try:
        store = Store(redis, Keys(), name="test", outage_ms=10_000)
        workers = await living(store)
        if not still:
            still += [each.address for pool in await pools.names(store) for each in await pools.listing(store, pool)]
            for address in still:
                await tell(address, "pause?mode=keep")
    finally:
        await redis.aclose()
    busy = {worker.node for worker in workers if worker.stage is Stage.RUN and worker.busy}
    dying[:] = sorted(str(node) for node in busy if node != "n1")[-1:]
    return len(busy) == 3 and bool(still)
