"""`prorl-mq demo` on a scripted backend: it fails unless a tool ran and a reward was earned."""

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from reasoning_gym.factory import create_dataset

from prorl_mq.cli.demo.command import proven
from prorl_mq.cli.demo.proof import Proof
from tests.cli.conftest import command, prorl
from tests.sandbox.conftest import TOOLS_DIR, require_apptainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(330)]

CALL = '<tool_call>{"name":"execute_bash","arguments":{"command":"id"}}</tool_call>'


@pytest.fixture(params=["apptainer", "bubblewrap"])
def kind(request: pytest.FixtureRequest, state: Path) -> str:
    """What the demo will choose: with Apptainer installed, and without."""
    if request.param == "apptainer":
        require_apptainer()
        state.mkdir()
        for name in ("apptainer", "images"):
            (state / name).symlink_to(TOOLS_DIR / name)
    return str(request.param)


def test_a_demo_with_a_tool_call_and_a_reward_succeeds_and_leaves_nothing_running(
    kind: str,
    state: Path,
    tasks: Callable[..., Path],
    start_backend: Callable[..., str],
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    entry = create_dataset("chain_sum", seed=0, size=1)[0]
    answer = f"<answer>{entry['answer']}</answer>"
    backend = start_backend("--text", CALL, "--text", answer)
    done = run_demo(state, tasks(1, tools=["execute_bash"]), backend, tokenizer_dir, tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert f"sandboxes use {kind}" in done.stdout.lower() + done.stderr.lower()
    assert "2 samples, 2 tool calls, 2 with reward > 0" in done.stdout
    assert re.search(r"^prorl-mq:   metrics +http://127\.0\.0\.1:\d+/metrics ", done.stderr, re.MULTILINE)
    conversation = done.stderr.partition("one of the conversations, demo:")[2]
    assert re.search(r"^  tool +uid=.*\n", conversation, re.MULTILINE)
    assert "\n  reward     1\n" in conversation
    proof = "ids and log-probabilities of 2 of 2 trajectories (4 turns, "
    assert proof in done.stdout
    assert "equal, byte for byte, what the backend sent" in done.stdout
    assert "the pool 'policy' afterwards:\naddress" in done.stdout
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in found] == [1.0, 1.0]
    [call] = found[0]["trajectory"]["turns"][0]["tool_calls"]
    assert "uid=" in call["result"]
    assert not (state / "demo" / "redis" / "redis.sock").exists()
    assert not list((state / "demo" / "sandboxes").iterdir())


class Terminal:
    """A demo on a pseudo-terminal, and what it has said there. `ci`: as a job of CI with a terminal."""

    def __init__(self, *words: object, ci: str = "") -> None:
        self.said = ""
        self._terminal, side = pty.openpty()
        # A shell starts what runs in the background with SIGINT ignored, and a child inherits that.
        argv = ["env", "--default-signal=INT", *command("demo", *words)]
        env = {**os.environ, "CI": ci}
        self.process = subprocess.Popen(argv, stdin=side, stdout=side, stderr=side, start_new_session=True, env=env)
        os.close(side)

    def wait_for(self, text: str) -> str:
        """Reads until the text, or the end."""
        while text not in self.said:
            ready, _, _ = select.select([self._terminal], [], [], 240)
            assert ready, self.said
            try:
                self.said += os.read(self._terminal, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        return self.said

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> int:
        code = self.process.wait(120)
        self.wait_for("\0")
        os.close(self._terminal)
        return code


def test_on_a_terminal_the_service_stays_up_until_ctrl_c(
    state: Path, tasks: Callable[..., Path], start_backend: Callable[..., str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    words = ("--backend", start_backend(), "--tokenizer", tokenizer_dir, "--out", tmp_path / "out.jsonl")
    demo = Terminal("--state-dir", state, "--tasks", tasks(1), "--n", 1, "--sandbox", "none", *words)
    try:
        said = demo.wait_for("these rollouts in a browser")
        url = said.partition("Try next:")[2].split()[0].partition("/ui")[0]
        assert httpx.get(f"{url}/readyz", trust_env=False).is_success
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 1, demo.said  # no tool ran: staying does not hide that
        assert "[####################] 1 of 1 groups" in demo.said
        assert not (state / "demo" / "redis" / "redis.sock").exists()
    finally:
        demo.process.kill()


def test_on_a_terminal_missing_tools_are_offered(state: Path) -> None:
    demo = Terminal("--state-dir", state)
    try:
        said = demo.wait_for("[Y/n]")
        assert "sandbox: Apptainer" in said
        assert "demo: vLLM" in said
        demo.type("n\n")
        assert demo.end() == 2
        assert "prorl-mq install-tools demo" in demo.said.replace("\r\n", "")
    finally:
        demo.process.kill()


@pytest.mark.parametrize("way", ["end of input", "interrupt", "CI"])
def test_nothing_is_installed_without_an_answer(state: Path, way: str) -> None:
    demo = Terminal("--state-dir", state, ci="true" if way == "CI" else "")
    try:
        if way != "CI":
            demo.wait_for("[Y/n]")
        if way == "end of input":
            demo.type("\x04")
        if way == "interrupt":
            demo.process.send_signal(signal.SIGINT)
        assert demo.end() == (130 if way == "interrupt" else 2)
        assert ("[Y/n]" in demo.said) == (way != "CI")
        assert not (state / "logs").exists()
    finally:
        demo.process.kill()


def test_a_demo_without_a_tool_call_fails(
    state: Path, tasks: Callable[..., Path], start_backend: Callable[..., str], tokenizer_dir: Path, tmp_path: Path
) -> None:
    done = run_demo(state, tasks(1), start_backend(), tokenizer_dir, tmp_path)
    assert done.returncode == 1
    assert "it needs a tool call that ran" in done.stderr


SHOWN = {
    "math": ("It is \\boxed{7}.", {"math-half": 0, "math-power": 0, "math-sum": 1}),
    "reward_service": ("It is 7", {"last-number": 1, "last-word": 0}),
    "verifiers": ("5", {"little-sum-0": 1, "little-sum-2": 0.1}),
    "gem": ("It may be \\boxed{11}.", {"gem-guess": 0, "gem-sum": 0}),
    "swe": ("It is fixed.", {"pallets__jinja-3.1.5": 0, "theskumar__python-dotenv-0.19.1": 0}),
}
NEEDED = {
    "gem": ("trainers/whole/gem", "make trainer-types"),
    "swe": ("images/swe/images.json", "make swe-images"),
}


@pytest.mark.parametrize("family", SHOWN)
def test_a_family_is_shown_by_tasks_of_its_own(
    state: Path, start_backend: Callable[..., str], tokenizer_dir: Path, tmp_path: Path, family: str
) -> None:
    """Also those that need something beside the service: images, an environment, a service that scores."""
    text, rewards = SHOWN[family]
    if family in NEEDED:
        require(state, *NEEDED[family])
    words = ("--family", family, "--backend", start_backend("--text", text), "--tokenizer", tokenizer_dir, "--n", 1)
    done = prorl("demo", "--state-dir", state, *words, "--out", tmp_path / "out.jsonl", timeout=300)
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    kept = {line["task_id"]: line["reward"] for line in found if not line["replaced"]}
    assert kept == pytest.approx(rewards)


def require(state: Path, there: str, made_by: str) -> None:
    """Puts what make has installed where the demo looks for it. CI has it."""
    if not (TOOLS_DIR / there).exists() and not os.environ.get("CI"):
        pytest.skip(f"no {TOOLS_DIR / there}: run `{made_by}`")
    state.mkdir()
    directory = Path(there).parts[0]
    (state / directory).symlink_to(TOOLS_DIR / directory)


def test_a_trajectory_that_is_not_what_was_sent_fails_the_demo(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal, other = Proof(turns=2, tokens=7), Proof(turns=1, tokens=3, faults=["turn 1: tokens [3, 7) are in no answer"])
    assert proven([equal, None, equal], state) == 0
    assert proven([equal, None, other], state) == 1
    said = capsys.readouterr()
    assert "1 of 2 trajectories (3 turns, 10 tokens)" in said.out
    assert "line 3 of the table, turn 1: tokens [3, 7) are in no answer" in said.err


def test_a_demo_without_its_model_says_what_to_do(state: Path, tmp_path: Path) -> None:
    done = prorl("demo", "--state-dir", state, "--out", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert f"prorl-mq install-tools demo --state-dir {state}" in done.stderr


def run_demo(
    state: Path, tasks: Path, backend: str, tokenizer: Path, tmp_path: Path
) -> "subprocess.CompletedProcess[str]":
    words = ("--tasks", tasks, "--backend", backend, "--tokenizer", tokenizer, "--n", 2)
    return prorl("demo", "--state-dir", state, *words, "--out", tmp_path / "out.jsonl", timeout=240)
