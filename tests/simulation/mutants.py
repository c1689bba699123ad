"""Scripts without some of their checks, and the search for histories that are wrong without them."""

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple
from unittest import mock

from prorl_mq.store import scripts
from prorl_mq.store.scripts import Script
from tests.simulation.checks import Check, assembled, checks, users, without
from tests.simulation.many import here
from tests.simulation.options import Options, derive_storm
from tests.simulation.replay import play
from tests.simulation.server import Server

REACHED: Final = "reached"  # a key beside all namespaces: which checks have decided something, and how often
TRIES: Final = 12  # histories in which a check decided something and was not missed when it was taken out
_NOTE = (
    "local function decided(id, value, by) if (value and true or false) == by then "
    f"redis.call('HINCRBY', '{REACHED}', id, 1) end return value end"
)


class Found(NamedTuple):
    """A check that was missed: in which seed's history, and what was seen."""

    check: Check
    seed: int
    what: str


@contextlib.contextmanager
def applied(texts: Mapping[str, str]) -> Iterator[None]:
    """Every process speaks these texts of some scripts."""
    original = scripts.script
    made = {name: Script(name, text) for name, text in texts.items()}

    def script(name: str) -> Script:
        return made.get(name) or original(name)

    with contextlib.ExitStack() as stack:
        for module in _users():
            stack.enter_context(mock.patch.object(module, "script", script))
        yield


def _users() -> list[object]:
    """Modules that import the table of scripts by name."""
    from prorl_mq.store import core, streams
    from prorl_mq.store.server import beat

    return [scripts, core, streams, beat]


def taken_out(*wanted: Check) -> contextlib.AbstractContextManager[None]:
    """Every process speaks the scripts without these checks."""
    return applied(_texts(wanted, without))


def _texts(wanted: Iterable[Check], wrap: Callable[[Check], str]) -> dict[str, str]:
    wanted = list(wanted)
    return {name: assembled(name, wanted, wrap) for check in wanted for name in users(check.file)}


def reached(server: Server, options: Options) -> list[Check]:
    """The checks that decided something in a history: without one that did not, it is the same history."""
    known = checks()
    numbers = {check: number for number, check in enumerate(known)}

    def noted(check: Check) -> str:
        return f"decided({numbers[check]}, {check.part}, {'true' if check.refuses else 'false'})"

    texts = {name: text.replace("\n", f"\n{_NOTE}\n", 1) for name, text in _texts(known, noted).items()}
    with applied(texts):
        play(server, options)
    return [known[int(number)] for number in server.call(("HKEYS", REACHED))]


def search(server: Server, seed: int, wanted: Iterable[Check]) -> tuple[list[Found], list[Check]]:
    """Takes out each wanted check that decided something in a seed's history: the missed ones, and the others."""
    options, found, escaped = derive_storm(seed), [], []
    tried = [check for check in reached(server, options) if check in set(wanted)]
    for check in tried:
        with taken_out(check):
            findings = play(server, options).findings
        if findings:
            found.append(Found(check, seed, str(findings[0])))
        else:
            escaped.append(check)
    return found, escaped


def hunt(wanted: Iterable[Check], seeds: Iterable[int], jobs: int) -> Iterator[Found]:
    """Plays seeds until each check is missed, or has escaped `TRIES` times."""
    left, escapes, seeds = set(wanted), Counter[Check](), iter(seeds)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=40) as pool:
        while wanted := [each for each in left if escapes[each] < TRIES]:
            tasks = [(seed, wanted) for seed in islice(seeds, 2 * jobs)]
            if not tasks:
                return
            for found, escaped in pool.imap_unordered(_searched, tasks):
                escapes.update(escaped)
                for each in found:
                    if each.check in left:
                        left.remove(each.check)
                        yield each


def _searched(task: tuple[int, list[Check]]) -> tuple[list[Found], list[Check]]:
    return search(here(), *task)


def covering(server: Server, check: Check, seeds: Iterable[int]) -> Iterator[Found]:
    """Other checks that refuse in place of one: a history is wrong without both, and right without either alone."""
    shared = set(users(check.file))
    others = [each for each in checks() if each != check and shared & set(users(each.file))]
    for seed in seeds:
        options = derive_storm(seed)
        if check not in reached(server, options):
            continue
        for other in others:
            with taken_out(check, other):
                both = play(server, options).findings
            if both:
                with taken_out(other):
                    alone = play(server, options).findings
                if not alone:
                    yield Found(other, seed, str(both[0]))
