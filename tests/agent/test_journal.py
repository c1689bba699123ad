"""A rollout that was cut anywhere continues from its log, and ends as if it had not been cut."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory, check
from prorl_mq.schema.turns import CallResult
from sandbox.protocol import ShellResult
from tests.agent.chat import ScriptedPolicy, call, encode, tooled
from workers.agent.alike import alike
from workers.agent.compaction import History
from workers.agent.hermes import Message
from workers.agent.journal import LogDiffers
from workers.agent.loop import run_agent
from workers.agent.result import AgentResult
from workers.agent.tools import TOOLS, Arguments, Resumes, Tool, ToolAnswer, ToolContext
from workers.inference.protocol import Completion
from workers.inference.run_clock import RunClock

pytestmark = pytest.mark.anyio
MESSAGES = [Message(role="system", content="You help."), Message(role="user", content="How many?")]


def bash(command: str) -> str:
    return call("execute_bash", f'{{"command": "{command}"}}')


TEXTS = [
    bash("one"),
    f"Two at once:\n{bash('two')}\n{bash('three')}",
    call("no_such_tool", "{}"),
    "<tool_call>\nnot json\n</tool_call>",
    call("think", '{"thought": "hm"}'),
    bash("four"),
    call("finish", '{"message": "1"}'),
]


class Cut(Exception):
    """The worker died."""


class Log:
    """A log in memory, of which a worker that dies leaves a part."""

    volatile: Sequence[str] = ()
    under_way: bytes | None = None

    def __init__(
        self,
        before: Sequence[bytes] = (),
        cut_at: int | None = None,
        *,
        rebuilds: bool = False,
        restored: int = -1,
        inherited: int = 0,
    ) -> None:
        self.before, self.inherited = list(before), inherited
        self.rebuilds, self.restored, self.acted_s = rebuilds, restored, 0.0
        self.rested: list[int] = []
        self.world: World | None = None
        self.rebuilt_at: int | None = None  # how many commands had run
        self.records = list(before)
        self.cut_at = cut_at
        self.waited: list[bool] = []
        self.files: list[bytes] = []

    leaves = False

    def open(self) -> None:
        pass

    async def border(self) -> None:
        pass

    def rests(self, turn: int) -> None:
        self.rested.append(turn)

    async def acts(self) -> None:
        pass

    async def rebuilt(self) -> None:
        assert self.rebuilds
        self.rebuilds = False
        self.rebuilt_at = len(self.world.ran) if self.world is not None else 0

    async def part(self, record: bytes, *, wait: bool = False) -> None:
        raise NotImplementedError

    async def note(self, text: str) -> None:
        raise NotImplementedError

    async def keep_file(self, data: bytes) -> str:
        self.files.append(data)
        return f"file-{len(self.files)}"

    async def kept_file(self, name: str) -> bytes | None:
        number = int(name.removeprefix("file-"))
        return self.files[number - 1] if number <= len(self.files) else None

    async def append(self, record: bytes, *, wait: bool) -> None:
        if self.cut_at is not None and len(self.records) >= self.cut_at:
            raise Cut
        self.records.append(record)
        self.waited.append(wait)


class World:
    """A sandbox that counts: what a command answers depends on all that ran before. Acts are known by name."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.known: dict[str, ShellResult] = {}

    def named(self, name: str) -> "Acts":
        return Acts(self, name)


class Acts:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    async def bash(self, command: str, *, timeout_s: float = 30.0, is_input: bool = False) -> ShellResult:
        if self.name not in self.world.known:
            self.world.ran.append(command)
            output = f"{command} is number {len(self.world.ran)}\n"
            self.world.known[self.name] = ShellResult(output=output, exit_code=0)
        return self.world.known[self.name]


class Sampler(ScriptedPolicy):
    """Samples the text of its turn, with log-probabilities that 32 bits hold for odd turns alone."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(tooled(), list(texts))
        self.sampled: list[int] = []
        self.turn = 0

    async def generate(self, prompt_ids: Sequence[int], **sampling: Any) -> Completion:
        completion = await super().generate(prompt_ids, **sampling)
        number = self.turn + len(self.sampled)
        self.sampled.append(number)
        logprob = -0.5 * number if number % 2 else -0.1 * number
        return msgspec.structs.replace(completion, logprobs=[logprob] * len(completion.ids), seconds=number / 8)


async def rollout(log: Log | None, world: World, policy: ScriptedPolicy, **more: Any) -> AgentResult:
    return await run_agent(
        policy=policy,
        renderer=policy.renderer,
        messages=MESSAGES,
        tools=more.pop("tools", list(TOOLS.values())),
        sandbox=world,  # type: ignore[arg-type]
        sampling=Sampling(seed=1),
        sample="task:0",
        deadline=more.pop("clock", None) or RunClock(60),
        log=log,
        **more,
    )


def told(trajectory: Trajectory) -> Any:
    """All of it but the times that differ from run to run."""
    check(trajectory)
    plain = msgspec.to_builtins(trajectory)
    for turn in plain["turns"]:
        turn.pop("started_seconds")
        for each in turn["tool_calls"]:
            each.pop("seconds")
    return plain


async def in_parts(
    texts: Sequence[str], cut_at: int, **more: Callable[[], Any]
) -> tuple[Log, World, AgentResult, Sampler]:
    """A rollout that is cut before its log has more than `cut_at` records, and then continues."""
    world, first = World(), Log(cut_at=cut_at)
    made = {name: make() for name, make in more.items()}
    with pytest.raises(Cut):
        await rollout(first, world, Sampler(texts), **made)
    policy = Sampler(texts[(cut_at + 1) // 2 :])
    policy.turn = (cut_at + 1) // 2
    second = Log(first.records)
    return second, world, await rollout(second, world, policy, **{name: make() for name, make in more.items()}), policy


RECORDS = 2 * len(TEXTS) - 1


@pytest.mark.parametrize("cut_at", range(RECORDS))
async def test_it_is_the_same_rollout_wherever_it_was_cut(cut_at: int) -> None:
    whole, world = Log(), World()
    undisturbed = await rollout(whole, world, Sampler(TEXTS))
    assert len(whole.records) == RECORDS
    log, again, result, policy = await in_parts(TEXTS, cut_at)
    assert told(result.trajectory) == told(undisturbed.trajectory)
    assert (again.ran, result.answer) == (world.ran, "1")
    assert (result.tool_calls, result.refused_calls) == (undisturbed.tool_calls, undisturbed.refused_calls) == (6, 2)
    assert policy.sampled == list(range((cut_at + 1) // 2, len(TEXTS)))
    assert len(log.records) == RECORDS
    assert result.exchanged == undisturbed.exchanged


@pytest.mark.parametrize("cut_at", range(1, RECORDS))
async def test_where_its_sandbox_is_lost_it_is_the_same_in_a_new_one(cut_at: int) -> None:
    undisturbed = await rollout(Log(), world := World(), Sampler(TEXTS))
    first = Log(cut_at=cut_at)
    with pytest.raises(Cut):
        await rollout(first, World(), Sampler(TEXTS))
    policy = Sampler(TEXTS[(cut_at + 1) // 2 :])
    policy.turn = (cut_at + 1) // 2
    second = Log(first.records, rebuilds=True)
    second.world = again = World()
    result = await rollout(second, again, policy)
    assert told(result.trajectory) == told(undisturbed.trajectory)
    assert again.ran == world.ran
    assert policy.sampled == list(range((cut_at + 1) // 2, len(TEXTS)))
    finished = 1 if cut_at >= 2 else 0, 2 if cut_at >= 4 else 0, 1 if cut_at >= 12 else 0
    assert second.rebuilt_at == sum(finished), "calls whose results were not logged follow the note"
    assert (result.tool_calls, result.refused_calls) == (undisturbed.tool_calls, undisturbed.refused_calls)


@pytest.mark.parametrize("restored", [-1, 0, 1, 4])
async def test_calls_that_a_checkpoint_has_are_not_made_again(restored: int) -> None:
    undisturbed = await rollout(Log(), world := World(), Sampler(TEXTS))
    first, before = Log(cut_at=10), World()
    with pytest.raises(Cut):
        await rollout(first, before, Sampler(TEXTS))
    assert first.rested == [0, 1, 4], "turns whose calls were all refused change nothing"
    has = {-1: [], 0: ["one"], 1: ["one", "two", "three"], 4: ["one", "two", "three"]}[restored]
    again = World()
    again.ran = list(has)
    policy = Sampler(TEXTS[5:])
    policy.turn = 5
    result = await rollout(Log(first.records, rebuilds=True, restored=restored), again, policy)
    assert told(result.trajectory) == told(undisturbed.trajectory)
    assert again.ran == world.ran


class Other(World):
    """A world in which something is different from the second command on."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = ["something else"]


async def test_a_new_sandbox_in_which_a_call_answers_otherwise_begins_the_rollout_again() -> None:
    log = Log(cut_at=5)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(TEXTS))
    with pytest.raises(LogDiffers, match=r"execute_bash in turn 0 answers otherwise .*'one is number 1' was logged"):
        await rollout(Log(log.records, rebuilds=True), Other(), Sampler([]))


async def test_what_a_family_declares_volatile_may_differ_in_a_new_sandbox() -> None:
    """The test above is its control: the same worlds without the declaration."""
    log = Log(cut_at=5)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(TEXTS))
    again = Log(log.records, rebuilds=True)
    again.volatile = (r"is .*$",)
    sampler = Sampler(TEXTS[2:])
    sampler.turn = 2
    await rollout(again, Other(), sampler)
    assert not again.rebuilds


async def test_a_call_that_reaches_beyond_its_sandbox_is_not_made_again_in_a_new_one() -> None:
    log, tool = Log(cut_at=3), Counter().tool(Resumes.HERE)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(COUNTS), tools=[tool])
    with pytest.raises(LogDiffers, match="count in turn 0 cannot be called again in a new sandbox"):
        await rollout(Log(log.records, rebuilds=True), World(), Sampler([]), tools=[tool])


@pytest.mark.parametrize("restored", [-1, 0])
async def test_a_call_beyond_its_sandbox_that_was_under_way_when_that_was_lost_is_not_sent_again(restored: int) -> None:
    """Nobody knows if it has acted. Turns before it, of other tools, are no reason to begin again."""
    tools = [Counter().tool(Resumes.KEPT), msgspec.structs.replace(Counter().tool(Resumes.HERE), name="beyond")]
    texts = [COUNTS[0], call("beyond", "{}")]
    log = Log(cut_at=3)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(texts), tools=tools)
    sent: list[str] = []

    async def again(_: ToolContext, __: Any) -> ToolAnswer:
        sent.append("again")
        return ToolAnswer(text="it is 1")

    tools[1] = msgspec.structs.replace(tools[1], run=again)
    tools[0] = Counter().tool(Resumes.KEPT)
    with pytest.raises(LogDiffers, match="beyond was under way when its sandbox was lost"):
        await rollout(Log(log.records, rebuilds=True, restored=restored), World(), Sampler(["Done."]), tools=tools)
    assert sent == []


async def test_a_rollout_that_does_not_end_its_calls_again_in_time_begins_again() -> None:
    log = Log(cut_at=3)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(COUNTS), tools=[Counter().tool(Resumes.KEPT)])

    async def never(_: ToolContext, __: Any) -> ToolAnswer:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    tool = msgspec.structs.replace(Counter().tool(Resumes.KEPT), run=never)
    with pytest.raises(LogDiffers, match="was not made again in time"):
        await rollout(Log(log.records, rebuilds=True), World(), Sampler([]), tools=[tool], clock=RunClock(1))


async def test_the_time_of_calls_that_are_made_again_is_not_the_policys() -> None:
    log = Log(cut_at=4)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler([*COUNTS[:2], "Done."]), tools=[Counter().tool(Resumes.KEPT)])

    async def slow(_: ToolContext, __: Any) -> ToolAnswer:
        await asyncio.sleep(0.2)
        slow.count += 1  # type: ignore[attr-defined]
        return ToolAnswer(text=f"it is {slow.count}")  # type: ignore[attr-defined]

    slow.count = 0  # type: ignore[attr-defined]
    clock, tool = RunClock(60), msgspec.structs.replace(Counter().tool(Resumes.KEPT), run=slow)
    await rollout(Log(log.records, rebuilds=True), World(), Sampler(["Done."]), tools=[tool], clock=clock)
    assert clock.stalled_s >= 0.4


@pytest.mark.parametrize("left_s", [5, -1])
async def test_a_call_that_is_made_again_may_last_as_long_as_it_might_before(left_s: float) -> None:
    """However little the policy has left: a call that ran into another limit would answer otherwise."""
    log = Log(cut_at=4)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler([*COUNTS[:2], "Done."]), tools=[Counter().tool(Resumes.KEPT)])
    given: list[float] = []

    async def timed(context: ToolContext, _: Any) -> ToolAnswer:
        given.append(context.timeout_s)
        return ToolAnswer(text=f"it is {len(given)}")

    late, tool = RunClock(60), msgspec.structs.replace(Counter().tool(Resumes.KEPT), run=timed)
    late.charge(60 - left_s)
    await rollout(Log(log.records, rebuilds=True), World(), Sampler(["Done."]), tools=[tool], clock=late)
    assert given == [Sampling().tool_timeout_ms / 1000] * 2


@pytest.mark.parametrize(
    ("logged", "again"),
    [
        ("3 passed in 0.12s", "3 passed in 0.31s"),
        ("real\t0m0.004s", "real\t0m0.011s"),
        ("<object at 0x7f00aa>", "<object at 0x7fbb01>"),
        ("-rw-r--r-- 1 root root 4 Nov 24 14:02 a", "-rw-r--r-- 1 root root 4 Nov 25 01:10 a"),
        ("/tmp/tmpab12cd_f/x", "/tmp/tmpzz98yyxx/x"),
        ("/tmp/tmp.DsSudSSfMK", "/tmp/tmp.a81sZsKKw9"),
        ("2026-11-24T14:02:11 done", "2026-11-25T09:00:59 done"),
        ("2026-11-24T14:02:11.123Z", "2026-11-25T09:00:59.001Z"),
        ("2026-11-24 14:02:11,123 INFO", "2026-11-25 09:00:59,001 INFO"),
        ("Tue Nov 24 18:18:17 UTC 2026", "Wed Nov 25 00:00:01 UTC 2026"),
        ("Date: Tue, 24 Nov 2026 18:18:17 GMT", "Date: Wed, 25 Nov 2026 01:00:00 GMT"),
        ("14:02:11 up", "09:00:59 up"),
        ("1\n[still running after 30 s; call again", "1\n[still running after 31 s; call again"),
        ("[stopped after 30 s]", "[stopped after 33 s]"),
        (
            "[over the memory limit: everything that runs takes 2050 MiB of 2048 MiB; killed x (9), which takes 9 MiB]",
            "[over the memory limit: everything that runs takes 211 MiB of 2048 MiB; killed x (41), which takes 7 MiB]",
        ),
    ],
)
def test_answers_of_two_sandboxes_that_are_alike_are_alike(logged: str, again: str) -> None:
    assert alike(CallResult(logged, True, False, 1.0), CallResult(again, True, False, 2.0), "x")


@pytest.mark.parametrize(
    ("command", "logged", "again"),
    [
        ("sleep 9 &", "[1] 4211", "[1] 87"),
        ("cd /x && git commit -m first", "[main 1a2b3c4] first", "[main 9f8e7d6] first"),
        ("git rev-parse HEAD", f"{'1a2b3' * 8}\n", f"{'9f8e7' * 8}\n"),
    ],
)
def test_what_one_command_alone_says_differently_is_alike_for_that_command(
    command: str, logged: str, again: str
) -> None:
    before, now = CallResult(logged, True, False, 1.0), CallResult(again, True, False, 2.0)
    assert alike(before, now, command)
    assert not alike(before, now, "cat notes && echo 1 2>&1")


@pytest.mark.parametrize(
    ("logged", "again"),
    [
        ("3 passed in 0.12s", "2 passed, 1 failed in 0.12s"),
        ("exit code 0", "exit code 1"),
        ("0.8444218515250481", "0.7579544029403025"),
        ("4 lines", "5 lines"),
        ("a.py\nb.py", "a.py"),
        (f"{'d41d8cd9' * 4}  a", f"{'0cc175b9' * 4}  a"),
        (f"{'d41d8cd9' * 8}  a", f"{'0cc175b9' * 8}  a"),
        ("word1a2b3c4", "word9f8e7d6"),
        ("0xdeadbeef", "0x0"),
        ("12:30 def", "45:59 def"),
        ("12:30:def f():", "45:59:def f():"),
        ("latency 200ms", "latency 2ms"),
        ("balance: 3 s", "balance: 900 s"),
        ("it is still running after 30 s", "it is still running after 31 s"),
        ("takes 2050 MiB of 2048 MiB", "takes 2111 MiB of 2048 MiB"),
        ("[over the memory limit: killed x]", "[over the memory limit: killed y]"),
        ("tmpl_admin.html", "tmpl_user.html"),
        ("2026-11-24", "2027-01-01"),
        ("Nov 24 was it", "Dec 3 was it"),
        ("timeout 3m20s", "timeout 5m10s"),
        ("[1] 42", "[1] 43"),
    ],
)
def test_answers_of_two_sandboxes_that_differ_do(logged: str, again: str) -> None:
    """As for any command that brings no forms of its own, among them one that shows both of these."""
    for command in ("x", "git status; sha256sum a"):
        before, now = CallResult(logged, True, False, 1.0), CallResult(again, True, False, 1.0)
        assert not alike(before, now, command)


def test_an_answer_that_was_right_and_is_not_any_more_is_another_one() -> None:
    assert not alike(CallResult("same", True, False, 1.0), CallResult("same", False, False, 1.0), "x")


async def test_a_call_is_sent_once_its_completion_is_logged_and_the_results_wait_for_nobody() -> None:
    log = Log()
    await rollout(log, World(), Sampler(TEXTS))
    assert log.waited == [True, False] * (len(TEXTS) - 1) + [True]


async def test_a_rollout_of_one_turn_is_not_logged() -> None:
    log = Log()
    await rollout(log, World(), Sampler(["It is 42."]))
    assert log.records == []


class Counter:
    """A tool whose state is the handler's: it counts its calls."""

    def __init__(self, step: int = 1) -> None:
        self.value, self.step = 0, step

    def tool(self, resumes: Resumes) -> Tool:
        async def run(_: ToolContext, __: "Count") -> ToolAnswer:
            self.value += self.step
            return ToolAnswer(text=f"it is {self.value}", final=self.value >= 3)

        return Tool(name="count", description="Counts.", arguments=Count, run=run, resumes=resumes)


class Count(Arguments, frozen=True, kw_only=True):
    """Counts."""


COUNTS = [call("count", "{}")] * 3


@pytest.mark.parametrize("cut_at", range(5))
async def test_tools_that_live_in_the_process_are_called_again(cut_at: int) -> None:
    _, _, result, _ = await in_parts(COUNTS, cut_at, tools=lambda: [Counter().tool(Resumes.AGAIN)])
    assert (result.answer, result.stop.reason) == ("it is 3", "finish")
    undisturbed = await rollout(None, World(), Sampler(COUNTS), tools=[Counter().tool(Resumes.AGAIN)])
    assert told(result.trajectory) == told(undisturbed.trajectory)


async def test_a_tool_that_answers_otherwise_is_told() -> None:
    log = Log(cut_at=3)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(COUNTS), tools=[Counter().tool(Resumes.AGAIN)])
    with pytest.raises(LogDiffers, match="count in turn 0 answers otherwise"):
        await rollout(Log(log.records), World(), Sampler([]), tools=[Counter(2).tool(Resumes.AGAIN)])


async def test_with_a_tool_that_does_not_say_what_its_calls_do_nothing_is_logged() -> None:
    log = Log()
    await rollout(log, World(), Sampler(COUNTS), tools=[Counter().tool(Resumes.NEVER)])
    assert log.records == []


def environment(heard: list[str], word: str = "said") -> Callable[[str], Awaitable[str | None]]:
    async def reply(text: str) -> str | None:
        heard.append(text)
        return None if text == "done" else f"You {word} {len(heard)} things."

    return reply


@pytest.mark.parametrize("cut_at", range(5))
async def test_an_environment_is_told_again_what_it_was_told(cut_at: int) -> None:
    texts = ["one", "two", "done"]
    heard: list[list[str]] = []

    def begun() -> Callable[[str], Awaitable[str | None]]:
        heard.append([])
        return environment(heard[-1])

    _, _, result, _ = await in_parts(texts, cut_at, reply=begun)
    assert heard[-1] == texts
    undisturbed = await rollout(None, World(), Sampler(texts), reply=environment([]))
    assert told(result.trajectory) == told(undisturbed.trajectory)


async def test_an_environment_that_answers_otherwise_is_told() -> None:
    log = Log(cut_at=2)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(["one", "two"]), reply=environment([]))
    with pytest.raises(LogDiffers, match="the environment answers turn 0 otherwise"):
        await rollout(Log(log.records), World(), Sampler([]), reply=environment([], "sang"))


async def test_another_prompt_than_the_logged_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another release, model or template must not continue with tokens that are not its own."""
    log = Log(cut_at=3)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(TEXTS))
    monkeypatch.setattr("tests.agent.test_journal.MESSAGES", [Message(role="user", content="Hom many?")])
    with pytest.raises(LogDiffers, match="turn 0 was logged for a prompt of"):
        await rollout(Log(log.records), World(), Sampler([]))


@pytest.mark.parametrize("calls", [0, 2])
async def test_a_turn_that_is_read_with_other_calls_than_were_logged_is_told(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of another release may read calls otherwise. Where it sees none, the rollout would end there."""
    log, policy = Log(cut_at=2), Sampler([bash("one"), bash("two")])
    with pytest.raises(Cut):
        await rollout(log, World(), policy)
    other = Sampler([])
    parsed = other.renderer.parse(encode(other.renderer, calls * bash("one") or "It is 1."))
    monkeypatch.setattr(other.renderer, "parse", lambda *_: parsed)
    with pytest.raises(LogDiffers, match=f"logged with 1 calls; now it has {calls}"):
        await rollout(Log(log.records), World(), other)


@pytest.mark.parametrize("record", [b"", b"\x00\xff", b"\x01no zlib", b"\x00\x90", b"\x00\x91\x02"])
async def test_a_record_that_cannot_be_read_is_told(record: bytes) -> None:
    with pytest.raises(LogDiffers):
        await rollout(Log([record]), World(), Sampler([]))


@pytest.mark.parametrize("cut_at", range(5))
async def test_a_history_that_was_shortened_is_shortened_in_the_same_way(cut_at: int) -> None:
    """A summary that a model makes would be another one the second time."""
    made: list[str] = []

    async def compact(history: History) -> Sequence[Message] | None:
        if history.turns != 1:
            return None
        made.append(f"Summary {len(made)}.")
        return [*MESSAGES, Message(role="user", content=made[-1])]

    _, _, result, policy = await in_parts([bash("one"), bash("two"), "It is 42."], cut_at, compact=lambda: compact)
    assert result.forks == 1
    assert len(made) == (2 if cut_at == 2 else 1), "a summary counts once what was sampled behind it is logged"
    assert made[-1] in policy.renderer.text(result.trajectory.segments[1].prompt_ids)


async def test_the_time_of_all_attempts_counts() -> None:
    log, clock = Log(cut_at=4), RunClock(60)
    clock.charge(20)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(TEXTS), clock=clock)
    again = RunClock(60)
    policy = Sampler(TEXTS[2:])
    policy.turn = 2
    await rollout(Log(log.records), World(), policy, clock=again)
    assert 35 < again.left_s < 40.1


@pytest.mark.parametrize("kind", ["bash", "count", "compact"])
async def test_a_rollout_whose_time_is_used_up_keeps_all_turns_that_were_logged(kind: str) -> None:
    async def compact(history: History) -> Sequence[Message] | None:
        return MESSAGES if history.turns == 1 else None

    texts = COUNTS[:2] if kind == "count" else TEXTS[:2]
    more: dict[str, Any] = {"compact": compact} if kind == "compact" else {}
    first = {"tools": [Counter().tool(Resumes.AGAIN)]} if kind == "count" else {}
    again = {"tools": [Counter().tool(Resumes.AGAIN)]} if kind == "count" else {}
    log = Log(cut_at=4)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler([*texts, texts[0]]), **more, **first)
    late = RunClock(60)
    late.charge(61)
    result = await rollout(Log(log.records), World(), Sampler([]), clock=late, **more, **again)
    assert (result.stop.reason, len(result.trajectory.turns)) == ("time", 2)


async def test_a_log_that_is_longer_than_the_rollout_is_told() -> None:
    log = Log(cut_at=8)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(TEXTS))
    with pytest.raises(LogDiffers):
        await run_agent(
            policy=Sampler([]),
            renderer=tooled(),
            messages=MESSAGES,
            tools=list(TOOLS.values()),
            sandbox=World(),  # type: ignore[arg-type]
            sampling=Sampling(seed=1, max_turns=2),
            sample="task:0",
            deadline=asyncio.get_running_loop().time() + 60,
            log=Log(log.records),
        )


@pytest.mark.parametrize(("cut_at", "counts"), [(3, True), (4, False)])
async def test_time_in_which_calls_ran_on_without_a_worker_counts(cut_at: int, counts: bool) -> None:
    """Those of a turn whose end is not logged. What ended turns have taken is in their records."""
    log = Log(cut_at=cut_at)
    with pytest.raises(Cut):
        await rollout(log, World(), Sampler(TEXTS))
    again, clock = Log(log.records), RunClock(60)
    again.acted_s = 20.0
    policy = Sampler(TEXTS[2:])
    policy.turn = 2
    result = await rollout(again, World(), policy, clock=clock)
    assert (clock.left_s < 40.1) == counts
    assert (result.trajectory.turns[2].started_seconds >= 20) == counts
