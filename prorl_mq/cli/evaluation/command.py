"""`prorl-mq evaluate`: samples a policy on a suite, and writes results and reports to a directory.

The directory has the definition (`evaluation.json`), the samples with their tokens (`samples.jsonl`), `results.json`,
`report.md` and `report.html`. The same command again continues, and samples nothing that has a result.
"""

import argparse
import asyncio
import os
import re
import sys
from pathlib import Path

import msgspec

from prorl_mq import chance
from prorl_mq.cli.evaluation.sampling import NOT_THERE, SuiteSampling, check_pool
from prorl_mq.cli.interruption import interruptible
from prorl_mq.cli.out_file import OutFile
from prorl_mq.cli.reaching import reach
from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, ServiceError
from prorl_mq.evaluation import definition, results, samples, suite, tally
from prorl_mq.evaluation.comparison import compared
from prorl_mq.evaluation.definition import Definition
from prorl_mq.evaluation.markdown import markdown
from prorl_mq.evaluation.page import html
from prorl_mq.evaluation.report import headline, report, title
from prorl_mq.evaluation.results import Results
from prorl_mq.evaluation.suite import Suite

FAULTS = (ConfigurationError,)
REPORTS = ("report.md", "report.html", results.FILE)
REFUSED = (400, 413, 422)  # what was sent is wrong, and will be
ROUNDING = 1e-9  # a mean of 0.6 may be less than the float 0.6
NAME_CHARS = 40  # of a suite's or pool's name in that of the run


async def run(given: argparse.Namespace) -> int:
    """Exit codes: 0 done, 1 below --fail-under, or samples have no result, 2 wrong command line, suite or directory."""
    if (given.suite is None) == (given.report is None):
        raise ConfigurationError("give a suite, or with --report the directory of an evaluation")
    other = results.read(given.compare) if given.compare else None
    if given.report is not None:
        if given.out is not None or given.n is not None:
            raise ConfigurationError("--report writes to its own directory, what it has: leave --out and --n away")
        directory, kept = given.report, definition.read(given.report)
        if kept is None:
            raise ConfigurationError(
                f"{directory} has no {definition.FILE}: `prorl-mq evaluate SUITE --out DIR` makes one"
            )
    else:
        loaded = suite.load(given.suite, given.n)
        directory = given.out or Path(f"{given.suite.stem}.{given.pool}.eval")
        kept = await _sample(given, loaded, directory)
    made = tally.compute(kept, samples.read(directory, kept))
    if other is not None:
        made = msgspec.structs.replace(made, comparison=compared(made, other, str(given.compare)))
    _write(directory, made)
    return _tell(given, directory, made)


async def _sample(given: argparse.Namespace, loaded: Suite, directory: Path) -> Definition:
    with OutFile(directory / samples.FILE) as out, interruptible(lambda: os._exit(130)):
        async with reach(given) as client:
            kept = await _begun(client, loaded, given.pool, directory)
            sampling = SuiteSampling(client, directory, loaded, kept, out)
            try:
                await sampling.run()
            except asyncio.CancelledError:
                print(
                    f"\nthe service continues with what is submitted, and {directory} keeps what has come; run the "
                    "same command again to get the rest",
                    file=sys.stderr,
                )
                raise
            except ServiceError as error:
                if error.status in REFUSED:
                    raise ConfigurationError(f"{error}; correct that, and run the command again") from None
                told = f"{error}; {directory} keeps what has come: run the same command again to get the rest"
                raise ServiceError(told, status=error.status) from None
    return sampling.kept


async def _begun(client: AsyncClient, loaded: Suite, pool: str, directory: Path) -> Definition:
    """The definition that the directory has, else a new one, with a run of its own."""
    kept = definition.read(directory)
    empty = not (directory / samples.FILE).stat().st_size
    if kept is not None:
        now = definition.define(loaded, pool, kept.run_id)
        if not empty or not list(definition.differences(kept, now)):
            definition.check_same(kept, now, directory)
            return kept
    elif not empty:
        raise ConfigurationError(
            f"{directory} has samples and no {definition.FILE}: they are of something else, so choose another --out"
        )
    await check_pool(client, pool)
    words = (re.sub(r"[^A-Za-z0-9_.\-]", "-", word)[:NAME_CHARS] for word in (loaded.name, pool))
    made = definition.define(loaded, pool, f"{'-'.join(['eval', *words])}-{chance.name(8)}")
    definition.write(directory, made)
    if kept is not None:  # it has no sample yet, so it may begin again with what has changed
        await _end(client, kept.run_id)
    return made


async def _end(client: AsyncClient, run_id: str) -> None:
    """Cancels a run, which may not have got to the service."""
    try:
        await client.cancel("run", run_id)
    except ServiceError as error:
        if error.status != NOT_THERE:
            raise


def _write(directory: Path, made: Results) -> None:
    """Results last: who finds them finds the reports that belong to them."""
    blocks = report(made)
    texts = (markdown(blocks).encode(), html(title(made), blocks).encode(), encoded(made))
    for name, data in zip(REPORTS, texts, strict=True):
        definition.save(directory / name, data)


def encoded(made: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def _tell(given: argparse.Namespace, directory: Path, made: Results) -> int:
    if given.json:
        print(encoded(made).decode(), end="")
    else:
        print(headline(made))
        if made.comparison is not None and (test := made.comparison.total) is not None:
            print(
                f"{test.difference:+.3f} against {made.comparison.other}: {test.wins} wins, {test.losses} losses, "
                f"{test.ties} ties, p {test.permutation_p:.4f}"
            )
        print(f"reports: {directory / REPORTS[0]}, {directory / REPORTS[1]}")
    if made.comparison is not None and not made.comparison.compared:
        told = f"nothing is compared: no task of a set has the same row and threshold in {made.comparison.other}"
        print(f"prorl-mq evaluate: {told}, and samples in both", file=sys.stderr)
    share = made.total.solved_share
    code = 0
    if missing := made.total.missing:
        why = ", ".join(f"{count} {reason}" for reason, count in made.total.without_result.items())
        told = f"{missing} of {made.total.samples} samples have no result ({why}): run the same command again"
        print(f"prorl-mq evaluate: {told}", file=sys.stderr)
        code = 1
    if given.fail_under is not None and (share is None or share.value < given.fail_under - ROUNDING):
        told = "no figure" if share is None else f"pass@1 {share.value:.3f}"
        print(f"prorl-mq evaluate: {told} is below --fail-under {given.fail_under:g}", file=sys.stderr)
        code = 1
    return code
