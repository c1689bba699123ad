"""The report of an evaluation, as blocks: figures, what is behind them, and what to look at."""

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from prorl_mq.evaluation.blocks import Anchor, Bar, Block, Chart, Command, Heading, Paragraph, Table
from prorl_mq.evaluation.paired import PairedTest
from prorl_mq.evaluation.results import Comparison, Cost, Results, SetResult, TaskResult
from prorl_mq.evaluation.statistics import Estimate

FAILURES: Final = 40  # samples that the report names
TASKS: Final = 200  # rows of the table of tasks
VIEW: Final = "view/index.html"  # that the command below makes
NOTES: Final = (
    "Each figure is the mean over tasks; ± is its standard error, clustered by task (samples of one task are not "
    "independent), and the range its 95 % interval: Wilson's with the effective number of samples for shares, "
    "Student's t for rewards. pass@k: at least one of k samples solves a task; pass^k: all k do; both without bias. "
    "Samples that infrastructure lost are in no figure but the bounds: pass@1 if all of them had failed, and if all "
    "had solved their task. The total weighs sets as the suite says."
)


def title(results: Results) -> str:
    return f"Evaluation of {results.pool} on {results.suite}"


def report(results: Results) -> list[Block]:
    """The blocks, in order."""
    total = results.total
    blocks: list[Block] = [Heading(title(results), 1), Paragraph(headline(results))]
    if len(results.versions) > 1:
        told = ", ".join(results.versions)
        blocks.append(Paragraph(f"The policy changed meanwhile: tokens were sampled by the versions {told}."))
    if results.others:
        told = " and ".join(results.others)
        blocks.append(
            Paragraph(f"Another model answered meanwhile: {told}. Samples may be of either; evaluate it again.")
        )
    if hurried := total.truncated.get("time", 0):
        blocks.append(Paragraph(
            f"Cut off by time (run_ms): {hurried} of {total.samples} samples, which count as they were then. How "
            "many do depends on the speed of backends and machines, and not on the policy alone."
        ))  # fmt: skip
    bars = [_bar(each.name, each.solved_share) for each in (*results.sets, total) if each.solved_share]
    blocks += [Heading("Results"), _figures(results)]
    if bars:
        blocks += [Chart("pass@1 with its 95 % interval", bars)]
    blocks += [Paragraph(NOTES)]
    if any(max(each.pass_at, default=1) > 1 for each in results.sets):
        blocks += [Heading("By number of samples"), _by_k(results)]
    if results.comparison is not None:
        blocks += _comparison(results.comparison, [each.name for each in results.sets])
    blocks += [Heading("How rollouts ended"), _endings(results)]
    blocks += _lost(total)
    blocks += [Heading("Cost"), _costs(results)]
    blocks += [Paragraph(
        "Prompt tokens count at each turn that sends them; cached ones are among them, where backends tell. Seconds of "
        "backends and tools are summed over samples that ran at the same time."
    )]  # fmt: skip
    blocks += [Heading("Tasks"), *_tasks(results)]
    blocks += _failures(results)
    origin = f"Run {results.run_id}" + "".join(
        f"; {what}: {', '.join(names) or 'not told'}"
        for what, names in (
            ("model", results.models),
            ("backends", results.backends),
            ("policy versions", results.versions),
        )
    )
    return [*blocks, Heading("Origin"), Paragraph(origin)]


def headline(results: Results) -> str:
    """The one sentence."""
    total = results.total
    share = total.solved_share
    scored = f"{total.scored} of {total.samples} samples of {sum(len(each.tasks) for each in results.sets)} tasks"
    if share is None:
        return f"No figure yet: {scored} are scored, and a set has none."
    return f"pass@1 {told(share)}; {scored} are scored, {total.solved} solved their task."


def told(estimate: Estimate | None) -> str:
    """An estimate with its standard error and its interval."""
    if estimate is None:
        return "–"
    if estimate.se is None or estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ± {estimate.se:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _rows(results: Results) -> Sequence[SetResult]:
    return (*results.sets, results.total) if len(results.sets) > 1 else results.sets


def _bar(label: str, estimate: Estimate | None) -> Bar:
    assert estimate is not None
    return Bar(label, estimate.value, estimate.low, estimate.high)


def _figures(results: Results) -> Table:
    head = ("set", "weight", "tasks", "n", "scored", "solved", "pass@1", "mean reward", "bounds of pass@1")
    rows = [
        (
            each.name, f"{each.weight:g}", f"{len(each.tasks) or sum(len(part.tasks) for part in results.sets)}",
            f"{each.n}", f"{each.scored} of {each.samples}", f"{each.solved}", told(each.solved_share),
            told(each.mean_reward), f"{each.worst:.3f} to {each.best:.3f}" if each.missing else "–",
        )
        for each in _rows(results)
    ]  # fmt: skip
    return Table(head, rows)


def _by_k(results: Results) -> Table:
    ks = sorted({k for each in results.sets for k in each.pass_at})
    shown = [k for k in ks if k & (k - 1) == 0 or k == ks[-1]]  # 1, 2, 4, 8 and so on, and the last
    rows = [
        (each.name, f"{k}", told(each.pass_at.get(k)), told(each.pass_all.get(k)))
        for each in _rows(results)
        for k in shown
        if k in each.pass_at
    ]
    return Table(("set", "k", "pass@k", "pass^k"), rows)


def _endings(results: Results) -> Table:
    head = (
        "set", "turns", "tokens", "seconds", "truncated", "tool calls", "of them failed", "attempts repeated",
        "without a result",
    )  # fmt: skip
    rows = [
        (
            each.name, _number(each.turns_mean), _number(each.tokens_mean), _number(each.seconds_mean),
            _counts(each.truncated), f"{each.tool_calls}", f"{each.tool_failures}", f"{each.retried}",
            f"{each.missing}",
        )
        for each in _rows(results)
    ]  # fmt: skip
    return Table(head, rows)


def _lost(total: SetResult) -> list[Block]:
    if not total.missing:
        return []
    rows = [(why, f"{count}") for why, count in total.without_result.items()]
    told_by = "They count neither as solved nor as failed. The same command again samples them again."
    return [
        Heading("Without a result"),
        Paragraph(f"{total.missing} of {total.samples} samples have no reward. {told_by}"),
        Table(("reason", "samples"), rows),
    ]


def _costs(results: Results) -> Table:
    head = ("set", "samples", "turns", "prompt tokens", "of them cached", "completion tokens", "backend s", "tool s",
            "INIT, RUN, EVAL s", "money")  # fmt: skip
    return Table(head, [(each.name, *_cost(each.cost)) for each in _rows(results)])


def _cost(cost: Cost) -> Sequence[str]:
    stages = ", ".join(f"{cost.stage_seconds.get(stage, 0.0):.1f}" for stage in ("init", "run", "eval"))
    return (
        f"{cost.samples}", f"{cost.turns}", f"{cost.prompt_tokens}",
        "not told" if cost.cached_tokens is None else f"{cost.cached_tokens}", f"{cost.completion_tokens}",
        f"{cost.backend_seconds:.1f}", f"{cost.tool_seconds:.1f}", stages,
        "–" if cost.money is None else f"{cost.money:.4f} {cost.currency}",
    )  # fmt: skip


def _comparison(found: Comparison, names: Sequence[str]) -> Iterator[Block]:
    yield Heading(f"Against {found.other} ({found.other_pool})")
    left = (
        f"; {found.left_out} tasks are left out: they differ, or one of the two has no sample" if found.left_out else ""
    )
    yield Paragraph(f"{found.compared} tasks are compared{left}.")
    if found.total is None:
        return
    head = ("set", "difference", "95 % interval", "wins", "losses", "ties", "p, signs flipped", "p, sign test",
            "found at 80 %")  # fmt: skip
    tests = [(name, found.sets[name]) for name in names if name in found.sets]
    yield Table(head, [(name, *_test(test)) for name, test in (*tests, ("total", found.total))])
    bars = [Bar(name, test.difference, test.low, test.high) for name, test in (*tests, ("total", found.total))]
    reach = max([0.1, *(abs(each) for bar in bars for each in (bar.value, bar.low or 0.0, bar.high or 0.0))])
    yield Chart("difference of pass@1 with its 95 % interval", bars, -reach, reach)
    yield Paragraph(
        "The difference of the shares of solved samples, ours less the other's, paired by task, with the standard "
        f"error of paired differences. Two-sided tests: signs of the differences flipped ({found.total.permutation} "
        "for the total), and the exact sign test of wins against losses. The last column is the smallest true "
        "difference that such a comparison finds at the 5 % level in 80 % of cases: a smaller one may have been missed."
    )
    if found.changes:
        rows = [(each.task_id, each.set, f"{each.ours:.2f}", f"{each.other:.2f}", f"{each.ours - each.other:+.2f}")
                for each in found.changes]  # fmt: skip
        yield Heading("Tasks that changed most")
        yield Table(("task", "set", "ours", "other", "difference"), rows, left=2)


def _test(test: PairedTest) -> Sequence[str]:
    interval = "–" if test.low is None or test.high is None else f"{test.low:+.3f} to {test.high:+.3f}"
    return (
        f"{test.difference:+.3f}" + ("" if test.se is None else f" ± {test.se:.3f}"), interval, f"{test.wins}",
        f"{test.losses}", f"{test.ties}", f"{test.permutation_p:.4f}", f"{test.sign_p:.4f}",
        "–" if test.found is None else f"{test.found:.3f}",
    )  # fmt: skip


def _tasks(results: Results) -> Iterator[Block]:
    """The hardest first."""
    found = [(each.name, task) for each in results.sets for task in each.tasks]
    found.sort(key=lambda each: _ease(each[1]))
    rows = [
        (task.task_id, name, f"{task.solved} of {task.scored}", _number(task.mean_reward, 3))
        for name, task in found[:TASKS]
    ]
    yield Table(("task", "set", "solved", "mean reward"), rows, left=2)
    if len(found) > TASKS:
        yield Paragraph(f"The {TASKS} hardest of {len(found)} tasks; results.json has all.")


def _ease(task: TaskResult) -> tuple[float, float]:
    return (task.solved / task.scored, task.mean_reward or 0.0) if task.scored else (2.0, 0.0)


def _failures(results: Results) -> Iterator[Block]:
    found = [(each.name, task.task_id, failure) for each in results.sets for task in each.tasks
             for failure in task.failures]  # fmt: skip
    if not found:
        return
    yield Heading("Samples that failed")
    yield Paragraph(
        "Each leads to its trajectory in the web page that the following command writes to the report's directory. "
        "Without --bundle it shows the same in a browser, and writes nothing."
    )
    yield Command("prorl-mq view samples.jsonl --bundle view")
    rows = [
        (Anchor(failure.job_id, f"{VIEW}#/jobs/{quote(failure.job_id, safe='')}"), name, task_id, failure.outcome,
         failure.note, f"{failure.reward:g}")
        for name, task_id, failure in found[:FAILURES]
    ]  # fmt: skip
    yield Table(("sample", "set", "task", "outcome", "note", "reward"), rows, left=5)


def _counts(counts: object) -> str:
    assert isinstance(counts, dict)
    total = sum(counts.values())
    return f"{total}" + (f" ({', '.join(f'{name} {count}' for name, count in counts.items())})" if total else "")


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
