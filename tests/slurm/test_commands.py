"""The text that goes to Slurm's commands, and what is made of theirs: against stand-ins that write down each call."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slurm import __main__ as cli
from slurm import commands, spec_file
from slurm.layout import job_name
from slurm.supervisor import places
from slurm.tasks import SlurmTask, read_tasks
from tests.slurm.conftest import Fake

pytestmark = pytest.mark.anyio
SPEC = """
name = "d"
shared = "{shared}"
[redis]
[api]
[arrays.node]
kind = "node"
count = 3
[arrays.eval]
kind = "eval"
"""


@pytest.fixture
def prorl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line, with a small deployment: exit code, output, errors."""
    path = tmp_path / "d.toml"
    path.write_text(SPEC.format(shared=tmp_path / "shared"))

    def run(command: str, *words: str) -> tuple[int, str, str]:
        code = cli.main([command, "--spec", str(path), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


async def test_a_job_does_not_inherit_the_job_that_submits_it(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node or the inside of a job: it must make no difference."""
    for name in ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SBATCH_CPU_BIND_LIST", "SLURM_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "leaks")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert await commands.submit("#!/bin/bash\n") == "17"
    [call] = fake.calls
    assert call == {
        "argv": ["sbatch", "--parsable"], "stdin": "#!/bin/bash\n", "env": {"SLURM_CONF": "/etc/slurm.conf"},
    }  # fmt: skip


@pytest.mark.parametrize("scrubbed", [True, False])
async def test_a_users_own_filters_change_nothing_that_is_seen_or_ended(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, scrubbed: bool
) -> None:
    """As SQUEUE_PARTITION=gpu, which hides running servers, so that others are asked for. The control keeps them."""
    if not scrubbed:
        monkeypatch.setattr(commands, "SCRUBBED", ("SLURM_",))
    names = ("SQUEUE_PARTITION", "SCANCEL_STATE", "SINFO_PARTITION")
    for name in names:
        monkeypatch.setenv(name, "gpu")
    await commands.tasks(["d.redis"])
    await commands.nodes()
    await commands.cancel(["17"])
    assert [call["env"] for call in fake.calls] == [{} if scrubbed else dict.fromkeys(names, "gpu")] * 3


@pytest.mark.parametrize("word", ["--requeue", "--no-requeue"])
async def test_a_users_own_word_does_not_requeue_what_the_script_says_is_not_to_be(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("SBATCH_REQUEUE", "1")
    await commands.submit(f"#!/bin/bash\n#SBATCH {word}\n")
    assert fake.calls[0]["env"] == {}


@pytest.mark.parametrize(
    ("variable", "kept"),
    [("SBATCH_ACCOUNT", True), ("SBATCH_RESERVATION", True), ("SBATCH_QOS", False), ("SBATCH_PARTITION", False),
     ("SBATCH_TIMELIMIT", False), ("SBATCH_ARRAY_INX", False), ("SBATCH_WAIT", False), ("SBATCH_MEM_PER_CPU", False)],
)  # fmt: skip
async def test_a_users_own_words_for_sbatch_hold_where_the_script_says_nothing(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, variable: str, kept: bool
) -> None:
    """To sbatch they are worth more than the script's own lines, and one that waits would never return."""
    monkeypatch.setenv(variable, "mine")
    lines = ("--partition=cpu", "--time=01:00:00", "--mem=4G", "--qos=normal")
    await commands.submit("\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "true"]))
    assert (fake.calls[0]["env"].get(variable) == "mine") is kept


async def test_the_cluster_after_a_job_id_is_no_part_of_it(fake: Fake) -> None:
    fake.answers("sbatch", "17;cluster\n")
    assert await commands.submit("") == "17"


async def test_a_refusal_is_slurms_own_sentence(fake: Fake) -> None:
    fake.answers("sbatch", "sbatch: error: invalid partition specified: mian\n", 1)
    with pytest.raises(commands.SlurmRefused, match=r"^sbatch: invalid partition specified: mian$"):
        await commands.submit("")


@pytest.mark.parametrize(
    "said",
    [
        "Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Unexpected missing socket error",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
    ],
)
async def test_a_busy_controller_is_told_apart_from_a_refusal(fake: Fake, said: str) -> None:
    fake.answers("squeue", f"squeue: error: {said}\n", 1)
    with pytest.raises(commands.SlurmRefused, match="slurmctld is busy or away: try again") as refused:
        await commands.tasks(["d.node"])
    assert said in str(refused.value)


async def test_a_host_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(commands.SlurmRefused, match="there is no command sbatch here"):
        await commands.submit("")


async def test_a_drain_signals_the_batch_process_alone(fake: Fake) -> None:
    """Without --batch the signal would not arrive; without --signal Slurm would kill half a minute later."""
    await commands.drain(["17_0", "17_2"])
    assert fake.argvs("scancel") == [["--signal=TERM", "--batch", "17_0", "17_2"]]


async def test_a_thousand_tasks_fit_on_command_lines(fake: Fake) -> None:
    await commands.cancel([f"17_{index}" for index in range(1001)])
    assert [len(argv) for argv in fake.argvs("scancel")] == [500, 500, 1]


def test_lines_of_squeue_become_tasks() -> None:
    text = (
        "17_0|d.node|RUNNING|n1|1-02:03:04|UNLIMITED|None\n"
        "17_1|d.node|PENDING||0:00|1:00:00|Resources\n"
        "18|d.redis|NODE_FAIL|n2|0:09|0:51|None\nsomething else\n"
    )
    about = {"deployment": "d", "reason": ""}
    assert read_tasks(text) == [
        SlurmTask(id="17_0", job="node", state="RUNNING", node="n1", run_s=93784, left="UNLIMITED", **about),
        SlurmTask(
            id="17_1", job="node", state="PENDING", node="", run_s=0, left="1:00:00", **{**about, "reason": "Resources"}
        ),
        SlurmTask(id="18", job="redis", state="NODE_FAIL", node="n2", run_s=9, left="0:51", **about),
    ]


def test_render_prints_what_submit_sends(fake: Fake, prorl: Callable[..., tuple[int, str, str]]) -> None:
    code, rendered, _ = prorl("render")
    assert code == 0
    code, said, _ = prorl("submit")
    assert (code, said) == (0, "redis: 17\napi: 17\nnode: 17\neval: 17\n")
    sent = [call["stdin"] for call in fake.calls if call["argv"][0] == "sbatch"]
    names = ("redis", "api", "node", "eval")
    assert rendered == "".join(f"# ==== {name}\n{text}\n" for name, text in zip(names, sent, strict=True))


def test_a_reader_that_goes_early_is_no_error(tmp_path: Path) -> None:
    """As in `prorl-slurm render | head`."""
    spec = tmp_path / "d.toml"
    spec.write_text(SPEC.format(shared=tmp_path / "shared"))
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "slurm", "render", "--spec", str(spec)]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_submit_makes_the_directory_of_the_logs(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """A task whose log has no directory fails without a word."""
    assert prorl("submit", "node")[0] == 0
    assert (tmp_path / "shared" / "logs").is_dir()
    assert len(fake.argvs("sbatch")) == 1


def test_a_server_that_is_there_is_not_submitted_again(fake: Fake, prorl: Callable[..., tuple[int, str, str]]) -> None:
    fake.answers("squeue", "9|d.redis|RUNNING|n1|1:00|59:00|None\n")
    assert prorl("submit", "redis", "api")[1] == "redis: is already there\napi: 17\n"


def test_submit_twice_changes_nothing(fake: Fake, prorl: Callable[..., tuple[int, str, str]]) -> None:
    fake.answers("squeue", "17_0|d.node|RUNNING|n1|1:00|59:00|None\n17_[1-2]|d.node|PENDING||0:00|1:00:00|Resources\n")
    said = prorl("submit", "node", "eval")[1]
    assert said == "node: is already there, tasks: 2; `scale --array` adds more\neval: 17\n"


def test_submit_says_that_a_task_is_held_back(fake: Fake, prorl: Callable[..., tuple[int, str, str]]) -> None:
    """As after a launch that failed: it is there, and yet nothing will come of it."""
    fake.answers("squeue", "9|d.redis|PENDING||0:00|1:00:00|launch failed requeued held\n")
    then = "`scontrol release 9` once its cause has gone, or `cancel 9`"
    assert prorl("submit", "redis", "api")[1] == (
        f"redis: is already there\napi: 17\n9 (redis) will not start by itself (launch failed requeued held): {then}\n"
    )
    assert "9 (redis)" not in prorl("submit", "api")[1]


def test_another_deployment_of_the_name_is_not_asked_for(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Nor would Redis wait for the other's, as it did with a dependency on the name."""
    prorl("submit", "redis")
    [name] = [line for line in fake.calls[-1]["stdin"].splitlines() if "job-name" in line]
    [asked] = [argv[argv.index("-n") + 1].split(",") for argv in fake.argvs("squeue")]
    assert name.partition("=")[2] in asked
    other = msgspec.structs.replace(spec_file.read(tmp_path / "d.toml"), shared="/elsewhere")
    assert job_name(other, "redis") not in asked
    assert "dependency" not in fake.calls[-1]["stdin"]


def test_test_only_asks_and_changes_nothing(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    assert prorl("submit", "--test-only", "node")[0] == 0
    assert fake.argvs("sbatch") == [["--test-only"]]
    assert not (tmp_path / "shared").exists()


def test_drain_withdraws_what_waits_and_spares_servers(fake: Fake, prorl: Callable[..., tuple[int, str, str]]) -> None:
    fake.answers(
        "squeue",
        "9|d.redis|RUNNING|n1|1:00|59:00|None\n17_0|d.node|RUNNING|n1|1:00|59:00|None\n"
        "17_1|d.node|PENDING||0:00|1:00:00|Resources\n18_0|d.eval|COMPLETED|n1|1:00|0:00|None\n",
    )
    assert prorl("drain")[2] == "1 withdrawn, 1 draining\n"
    assert fake.argvs("scancel") == [["17_1"], ["--signal=TERM", "--batch", "17_0"]]
    assert prorl("drain", "17_0")[2] == "0 withdrawn, 1 draining\n"


def test_cancel_ends_all_that_is_alive(fake: Fake, prorl: Callable[..., tuple[int, str, str]]) -> None:
    fake.answers(
        "squeue",
        "9|d.redis|RUNNING|n1|1:00|59:00|None\n18_0|d.eval|COMPLETED|n1|1:00|0:00|None\n"
        "17_0|d.node|RUNNING|n1|1:00|59:00|None\n17_1|d.node|PENDING||0:00|1:00:00|Resources\n",
    )
    assert prorl("cancel")[2] == "3 cancelled; accepted jobs stay in Redis\n"
    assert fake.argvs("scancel") == [["--signal=KILL", "--batch", "17_0"], ["17_0"], ["9", "17_1"]]


@pytest.mark.parametrize("noted", [True, False])
def test_what_cancel_has_killed_does_not_count_as_failed(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]], tmp_path: Path, noted: bool
) -> None:
    """Slurm calls such tasks failed where it hears of their end first. Of an array with three of them no more would be
    asked for. The control has forgotten what was killed.
    """
    prorl("submit")
    lines = [f"17_{place}|d.node|{{}}|n1|1:00|59:00|None\n" for place in range(3)]
    fake.answers("squeue", "".join(lines).format("RUNNING", "RUNNING", "RUNNING"))
    prorl("cancel", "node")
    fake.answers("squeue", "18_0|d.node|RUNNING|n1|1:00|59:00|None\n")  # as Slurm tells of other arrays alone
    prorl("cancel", "18_0")
    fake.answers("squeue", "".join(lines).format("FAILED", "FAILED", "FAILED"))
    if not noted:
        (tmp_path / "shared" / "watch" / "killed.json").unlink()
    told = json.loads(prorl("status", "--json")[1])
    assert {task["state"] for task in told["tasks"]} == {"CANCELLED" if noted else "FAILED"}
    assert len(told["notes"]) == (0 if noted else 3)


OUT_OF_THE_FILE = "7|d.watch|RUNNING|n1|1:00|59:00|None\n19_0|d.old|RUNNING|n1|1:00|59:00|None\n"


@pytest.mark.parametrize("seen", [True, False])
def test_what_was_taken_out_of_the_file_is_ended_too(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """A chain would continue, and ask for servers again. The control goes by the file alone."""
    spec = tmp_path / "d.toml"
    text = spec.read_text()
    spec.write_text(text + '[arrays.old]\nkind = "run"\n[watch]\n')
    prorl("submit")
    spec.write_text(text)
    prorl("submit")
    if not seen:
        monkeypatch.setattr(places, "whole", lambda deployment: deployment)
    fake.answers("squeue", OUT_OF_THE_FILE)
    prorl("drain")
    prorl("cancel")
    [*_, asked] = [argv[argv.index("-n") + 1] for argv in fake.argvs("squeue")]
    assert (".old." in asked, ".watch." in asked) == (seen, seen)
    drained = ["--signal=TERM", "--batch", "19_0"] in fake.argvs("scancel")
    assert (drained, ["7"] in fake.argvs("scancel")) == (seen, seen)


def test_drain_of_a_deployment_without_arrays_ends_no_server(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "d.toml").write_text(SPEC.format(shared=tmp_path / "shared").partition("[arrays")[0])
    fake.answers("squeue", "9|d.redis|RUNNING|n1|1:00|59:00|None\n")
    assert prorl("drain")[2] == "0 withdrawn, 0 draining\n"
    assert fake.argvs("scancel") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rendr",), "there is no command 'rendr': did you mean render?"),
        (("submit", "nodes"), "there is no job 'nodes' in the spec: there are redis, api, node, eval"),
        (("drain", "99_9"), "'99_9' is neither a job of the spec nor one of its tasks in Slurm"),
        (("scale", "--array", "x"), "there is no array 'x': there are node, eval"),
    ],
)
def test_a_wrong_word_is_named(
    fake: Fake,
    prorl: Callable[..., tuple[int, str, str]],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    try:
        code, _, err = prorl(*words)
    except SystemExit as ended:
        code, err = int(str(ended.code)), capsys.readouterr().err
    assert code == 2
    assert said in err


def test_status_without_a_redis_still_says_what_slurm_knows(
    fake: Fake, prorl: Callable[..., tuple[int, str, str]]
) -> None:
    fake.answers("squeue", "17_0|d.node|TIMEOUT|n1|1:00|0:00|TimeLimit\n")
    fake.answers("sinfo", "n1|idle\nn2|down*\n")
    code, said, _ = prorl("status")
    assert code == 0
    assert "17_0 (node): it reached its time limit; its jobs continue elsewhere" in said
    assert "Redis cannot be reached: the rendezvous" in said
    assert "no job of Redis runs or waits: `prorl-slurm submit redis` asks for one" in said
    assert "node n2 does not answer (down*): Slurm starts its tasks elsewhere\n" in f"{said}\n"
    told = json.loads(prorl("status", "--json")[1])
    assert (told["tasks"][0]["state"], told["nodes"]["n2"], told["redis"]) == ("TIMEOUT", "down*", None)
    assert "the rendezvous" in told["trouble"]
    assert told["notes"][-1] in said
    fake.answers("squeue", "9|d.redis|PENDING||0:00|1:00:00|Resources\n")
    assert "no job of Redis" not in prorl("status")[1]
