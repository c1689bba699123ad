"""Results of samples, and reports of them that nothing in the data can break out of."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.errors import ConfigurationError
from prorl_mq.evaluation import definition, page, results, samples, tally
from prorl_mq.evaluation.comparison import compared
from prorl_mq.evaluation.definition import Definition, KeptSet, KeptTask, Submitted
from prorl_mq.evaluation.markdown import markdown, plain
from prorl_mq.evaluation.report import report, title
from prorl_mq.evaluation.results import Results
from prorl_mq.evaluation.samples import KeptSample, KeptSpan, PlacedSample
from prorl_mq.evaluation.suite import Prices
from prorl_mq.schema.messages import ErrorInfo, Limits, Outcome, Sampling

HOSTILE = (
    "</td><script>alert('x')</script><img src=//e.example/x onerror=y>&amp; [a](javascript:b) | ` \x1b[2J\u202e\n# x"
)


def kept_set(name: str = "one", tasks: int = 4, n: int = 4, **more: Any) -> KeptSet:
    fields: dict[str, Any] = {"solved_at": 1.0, "weight": 1.0, **more}
    rows = [KeptTask(task_id=f"{name}-{place} {HOSTILE}", digest=str(place)) for place in range(tasks)]
    return KeptSet(name=name, n=n, sampling=Sampling(), limits=Limits(), tools=None, tasks=rows, **fields)


def defined(*sets: KeptSet, prices: Prices | None = None) -> Definition:
    return Definition(suite="s", pool="policy", run_id="r", priority=0, prices=prices, sets=sets)


def sample(reward: float | None, **more: Any) -> KeptSample:
    fields: dict[str, Any] = {"outcome": Outcome.COMPLETED if reward is not None else Outcome.INFRA_ERROR, **more}
    return KeptSample(group_id="g", job_id=f"r:g:{HOSTILE}", index=0, task_id="t", reward=reward, **fields)


def turn(prompt: int, completion: int, cached: int | None, *calls: samples.KeptCall) -> samples.KeptTurn:
    return samples.KeptTurn(prompt, completion, cached, 0.5, calls)


def computed(definition: Definition, rewards: dict[str, list[list[float | None]]], **more: Any) -> Results:
    found = [
        PlacedSample(set=name, task=place, sample=sample(reward, **more))
        for name, tasks in rewards.items()
        for place, given in enumerate(tasks)
        for reward in given
    ]
    return tally.compute(definition, found)


@pytest.fixture
def made() -> Results:
    """Two sets of which one is harder, with lost samples, and a comparison."""
    definition = defined(kept_set(), kept_set("two", n=2, weight=3.0))
    ours = computed(
        definition,
        {"one": [[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, None]], "two": [[1, 0], [0, 0], [1, 1], [0, 1]]},
        note=HOSTILE, error=ErrorInfo(type=HOSTILE, message="m", stage="run"),
    )  # fmt: skip
    other = computed(definition, {"one": [[0, 0, 0, 0]] * 4, "two": [[1, 1]] * 4})
    return msgspec.structs.replace(ours, comparison=compared(ours, other, f"other {HOSTILE}"))


def test_lost_samples_are_in_no_figure_but_the_bounds(made: Results) -> None:
    one, two = made.sets
    assert (one.scored, one.solved, one.missing) == (14, 7, 2)
    assert one.pass_at[1].value == pytest.approx((1 + 0.25 + 0 + 1) / 4)
    assert one.pass_at[2].value == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert one.pass_at[4].tasks == 3, "the task with two samples left says nothing of four"
    assert (one.worst, one.best) == (7 / 16, 9 / 16)
    assert sum(one.without_result.values()) == 2
    assert one.without_result["not ended"] == 1
    assert made.total.pass_at[1].value == pytest.approx((one.pass_at[1].value + 3 * two.pass_at[1].value) / 4)
    assert 4 not in made.total.pass_at, "one of the sets has two samples a task"


def test_reasons_are_of_the_samples_that_are_missing_and_not_of_those_made_up_for() -> None:
    """The first task lost three samples, and has them now."""
    [one] = computed(defined(kept_set(tasks=2, n=3)), {"one": [[None, None, None, 1, 1, 0], [None, 1, None]]}).sets
    assert one.missing == 2
    assert one.without_result == {"infra_error": 2}
    [one] = computed(defined(kept_set(tasks=2, n=3)), {"one": [[None, None, None, 1, 1, 0], [1, None]]}).sets
    assert one.without_result == {"infra_error": 1, "not ended": 1}


def test_tokens_seconds_tools_and_money_are_counted(tmp_path: Path) -> None:
    bad = samples.KeptCall(ok=False, seconds=2.0)
    turns = [turn(100, 10, 40, samples.KeptCall(seconds=1.0), bad), turn(200, 20, None)]
    span = samples.KeptSegment([KeptSpan("http://b", ("7", "8"))])
    about = {"trajectory": samples.KeptTrajectory(turns, [span]), "turns": 2, "seconds": {"run": 4.0}}
    prices = Prices(prompt=10.0, completion=100.0, cached=1.0, currency="EUR")
    found = computed(defined(kept_set(tasks=1, n=2), prices=prices), {"one": [[1, None]]}, **about)
    cost = found.total.cost
    assert (cost.samples, cost.turns, cost.prompt_tokens, cost.cached_tokens, cost.completion_tokens) == (
        2, 4, 600, 80, 60,
    )  # fmt: skip
    assert (cost.backend_seconds, cost.tool_seconds, dict(cost.stage_seconds)) == (2.0, 6.0, {"run": 8.0})
    assert cost.money == pytest.approx((520 * 10 + 80 * 1 + 60 * 100) / 1e6)
    assert (found.total.tool_calls, found.total.tool_failures) == (4, 2)
    assert (found.total.turns_mean, found.total.tokens_mean, found.total.seconds_mean) == (2.0, 30.0, 4.0)
    assert (found.backends, found.versions) == (["http://b"], ["7", "8"])
    (tmp_path / results.FILE).write_bytes(msgspec.json.encode(found))
    assert msgspec.json.encode(results.read(tmp_path)) == msgspec.json.encode(found)
    (tmp_path / results.FILE).write_text("[]")
    with pytest.raises(ConfigurationError, match="does not hold results"):
        results.read(tmp_path)


def test_a_policy_that_changes_between_two_samples_is_told() -> None:
    def told(*versions: str) -> str:
        spans = [KeptSpan(backend="b", version=(each, each)) for each in versions]
        segments = [samples.KeptSegment(spans=spans)]
        return markdown(report(computed(defined(kept_set()), {"one": [[1.0]]},
                                        trajectory=samples.KeptTrajectory(segments=segments))))  # fmt: skip

    assert "tokens were sampled by the versions 7, 8" in told("7", "8")
    assert "The policy changed meanwhile" not in told("7", "7")


def test_a_half_line_and_samples_of_other_groups_are_left_out(tmp_path: Path) -> None:
    submitted = Submitted(batch_id="b", set="one", round=0, groups={"g-0": (0, 2)})
    definition = msgspec.structs.replace(defined(kept_set()), submitted=[submitted])
    lines = [
        {"group_id": group, "job_id": "j", "index": 0, "task_id": "t", "outcome": "completed", "reward": 1.0}
        for group in ("g-0", "other", "g-0")
    ]
    text = b"\n".join(map(msgspec.json.encode, lines))
    (tmp_path / samples.FILE).write_bytes(b"\n".join([text[: text.index(b"\n")], text]))
    [placed] = samples.read(tmp_path, definition)  # a line that is there twice is one sample
    assert (placed.set, placed.task) == ("one", 0)
    for other in (b"x", b'{"a":' + b"[" * 20_000):
        (tmp_path / samples.FILE).write_bytes(text + b"\n" + other + b"\n")
        with pytest.raises(ConfigurationError, match=r"samples.jsonl:4 is not a sample"):
            list(samples.read(tmp_path, definition))


def test_only_the_same_rows_at_the_same_threshold_are_compared(made: Results) -> None:
    assert made.comparison is not None
    assert made.comparison.total is not None
    assert (made.comparison.compared, made.comparison.left_out) == (8, 0)
    assert made.comparison.sets["one"].wins == 3
    assert made.comparison.sets["two"].losses == 3
    assert made.comparison.total.difference == pytest.approx(
        (made.sets[0].pass_at[1].value - 0 + 3 * (made.sets[1].pass_at[1].value - 1)) / 4
    )
    other = computed(defined(kept_set(tasks=2), kept_set("two", n=2, solved_at=0.5)), {"one": [[1], [1]], "two": [[1]]})
    found = compared(made, other, "other")
    assert (found.compared, found.left_out) == (2, 6)


class Reader(HTMLParser):
    """Collects tags with their attributes, and checks that each one is closed."""

    VOID = ("meta", "line", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_no_script_no_request_and_hostile_text_as_text(made: Results) -> None:
    written = page.html(title(made), report(made))
    reader = Reader()
    reader.feed(written)
    assert reader.open == []
    assert {tag for tag, _ in reader.tags} <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "pre", "div", "table", "thead",
        "tbody", "tr", "th", "td", "a", "svg", "line", "text", "circle",
    }  # fmt: skip
    attributes = {name for _, attrs in reader.tags for name in attrs}
    assert not {
        name for name in attributes if name.startswith("on") or name in {"src", "style", "srcset", "xlink:href"}
    }
    targets = [attrs["href"] or "" for _, attrs in reader.tags if "href" in attrs]
    assert targets
    assert all(target.startswith("view/index.html#/jobs/r%3Ag%3A") for target in targets)
    assert "<script>alert('x')</script>" in reader.text
    assert not re.search("[\x1b\u202e]", written)
    assert "url(" not in written
    assert "@import" not in written
    policy = next(attrs["content"] or "" for _, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert ("viewport", "width=device-width, initial-scale=1") in [
        (attrs.get("name"), attrs.get("content")) for _, attrs in reader.tags
    ]


def test_without_escapes_the_page_has_a_script(made: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: the guard is taken out."""
    monkeypatch.setattr(page, "plain", str)
    assert re.search("<script>.*<img src=", page.html("t", report(made)))


def test_markdown_has_hostile_text_on_one_line_without_a_mark_up(made: Results) -> None:
    text = markdown(report(made))
    assert not re.search("[\x1b\u202e<]", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert max(widths) <= 11
    assert "](javascript" not in re.sub(r"\\.", "", text), "it is no link"
    assert r"\[a\](javascript" in text
    assert "http://b.example" not in plain("http://b.example @you www.b.example")
    assert plain("@you") == r"\@you"
    assert "pass@1 with its 95 % interval" in text
    assert "# x" not in [line.strip() for line in text.splitlines()]


def test_a_report_without_any_result_can_be_made() -> None:
    found = tally.compute(defined(kept_set()), [])
    assert found.total.solved_share is None
    assert "No figure yet" in markdown(report(found))
    page.html("t", report(found))


@pytest.mark.parametrize("data", [b'{"suite": "\xff"}', b"\xff", b"{}"])
def test_what_is_no_results_is_named(tmp_path: Path, data: bytes) -> None:
    for file in (results.FILE, definition.FILE):
        (tmp_path / file).write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"results\.json does not hold results"):
        results.read(tmp_path)
    with pytest.raises(ConfigurationError, match=r"evaluation\.json is not of an evaluation"):
        definition.read(tmp_path)


def test_another_model_and_samples_that_time_has_cut_off_are_told_first() -> None:
    """The control: a report without either says nothing of them."""
    kept = msgspec.structs.replace(defined(kept_set(tasks=1, n=2)), models=["m"])
    plainly = markdown(report(computed(kept, {"one": [[1, 0]]})))
    assert ("model: m" in plainly, "cut off" in plainly.lower(), "nother model" in plainly) == (True, False, False)
    mixed = msgspec.structs.replace(kept, others=["n"])
    told = markdown(report(computed(mixed, {"one": [[1, 0]]}, outcome=Outcome.TRUNCATED, truncated_by="time")))
    assert "Another model answered meanwhile: n." in told
    assert "2 of 2 samples, which count as they were then" in told
