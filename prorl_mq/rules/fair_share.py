"""Order of admission: tenants share the room by weight, each tenant's runs its part, a run's two purposes theirs.

At each level the one that has had the least for its weight goes next. So of those that always could have gone, what
one has had over its weight is never more than one group ahead of another's: shares follow the weights and nobody
starves. Who comes back from idleness or from a quota begins level with the others: nothing is saved up.

A group that does not fit into its run's or tenant's quota of jobs keeps that run or tenant waiting until it does, or
small groups would always overtake large ones. One that is larger than a whole quota, or a new one in a run that may
begin none, holds back those behind it alone. Pure.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import msgspec

from prorl_mq.schema.items import Wanted

Path = tuple[str, ...]  # (tenant), (tenant, run), (tenant, run, purpose)
ROOT: Path = ()


class Quotas(msgspec.Struct, kw_only=True):
    """Room that quotas leave now. A path that is missing has none."""

    most: Mapping[Path, int] = {}  # jobs in flight at most, of tenants and runs
    jobs: dict[Path, int] = {}  # what is left of that
    groups: dict[Path, int] = {}  # groups that each run may still begin
    room: int | None = None  # bytes that new groups may come to store; None: no limit
    sizes: Mapping[Path, int] = {}  # bytes that a sample of a run comes to store

    def no_room(self, path: Path, group: Wanted) -> bool:
        """True if Redis has no memory for what a new group will store. One that is refilled needs none of its own."""
        return self.room is not None and group.next == 0 and group.wanted * self.sizes.get(path[:2], 0) > self.room

    def barrier(self, path: Path, group: Wanted) -> Path | None:
        """The path at which a group of `path` must wait: the tenant, the run, or the path itself. None: it may go."""
        tenant, run = path[:1], path[:2]
        if self.no_room(path, group):
            return path
        if not self.most and not self.groups:
            return None
        too_large = any(group.wanted > self.most.get(node, math.inf) for node in (tenant, run))
        if too_large or (group.next == 0 and self.groups.get(run, math.inf) < 1):
            return path
        return next((node for node in (run, tenant) if group.wanted > self.jobs.get(node, math.inf)), None)

    def take(self, path: Path, group: Wanted) -> None:
        """A group goes."""
        if self.room is not None:
            self.room -= group.wanted * self.sizes.get(path[:2], 0)
        for node in self.jobs.keys() & {path[:1], path[:2]}:
            self.jobs[node] -= group.wanted
        if group.next == 0 and path[:2] in self.groups:
            self.groups[path[:2]] -= 1


def share(
    lines: Mapping[Path, Sequence[Wanted]],
    had: dict[Path, float],
    room: int,
    weights: Mapping[Path, float],
    quotas: Quotas,
    cut: Collection[Path] = (),
) -> dict[Path, list[Wanted]]:
    """Which groups to admit into `room` samples. `had` is kept between calls: samples over weight, from the least on.

    A group may exceed the room that is left by its own size, so that large groups are not starved by small ones. Lines
    in `cut` have more groups than are shown: when one runs out, the caller must look again before anybody continues.
    """
    queues = {path: deque(groups) for path, groups in lines.items() if groups}
    tree = _tree(queues)
    levels = {parent: list(kids) for parent, kids in tree.items()}
    for kids in levels.values():
        for kid in kids:
            had.setdefault(kid, 0.0)
    chosen: dict[Path, list[Wanted]] = {}
    held: set[Path] = set()
    while room > 0 and tree[ROOT]:
        path = _next(tree, had)
        barrier = quotas.barrier(path, queues[path][0])
        if barrier is not None:
            held.update(_remove(tree, barrier))
            continue
        group = queues[path].popleft()
        quotas.take(path, group)
        chosen.setdefault(path, []).append(group)
        room -= group.wanted
        for node in (path[:1], path[:2], path):
            had[node] += group.wanted / weights.get(node, 1.0)
        if not queues[path]:
            if path in cut:
                break
            _remove(tree, path)
    _level(had, levels, held.difference(*map(_nodes, chosen)))
    return chosen


def _nodes(path: Path) -> list[Path]:
    return [path[: depth + 1] for depth in range(len(path))]


def _tree(paths: Mapping[Path, object]) -> dict[Path, list[Path]]:
    tree: dict[Path, dict[Path, None]] = {ROOT: {}}
    for path in paths:
        for node in _nodes(path):
            tree.setdefault(node[:-1], {})[node] = None
    return {parent: list(kids) for parent, kids in tree.items()}


def _next(tree: Mapping[Path, list[Path]], had: Mapping[Path, float]) -> Path:
    node = ROOT
    while node in tree:
        kids = tree[node]
        node = kids[0] if len(kids) == 1 else min(kids, key=had.__getitem__)
    return node


def _remove(tree: Mapping[Path, list[Path]], node: Path) -> list[Path]:
    """Takes a node out, and those above it that it leaves without any."""
    removed = [node]
    tree[node[:-1]].remove(node)
    while node[:-1] and not tree[node[:-1]]:
        node = node[:-1]
        tree[node[:-1]].remove(node)
        removed.append(node)
    return removed


def _level(had: dict[Path, float], levels: Mapping[Path, list[Path]], held: set[Path]) -> None:
    """Counts from the least of those that could go; who could not, or was not there, keeps what it is ahead by."""
    least = {parent: min((had[kid] for kid in kids if kid not in held), default=0.0) for parent, kids in levels.items()}
    there = {kid for kids in levels.values() for kid in kids}
    for path in list(had):
        had[path] = max(0.0, had[path] - least.get(path[:-1], math.inf))
        if path not in there and had[path] == 0.0:
            del had[path]
