"""Carries attacks out, each first where its defence is missing, and judges what they achieved."""

import asyncio
import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sandbox.attack import limits, wire
from sandbox.attack.catalogue import LIMITS, Attack, Control, attacks
from sandbox.attack.naive import naive
from sandbox.attack.surroundings import PROGRAM_S, Surroundings
from sandbox.errors import SandboxError, SandboxOverrun, SandboxUnavailable
from sandbox.isolators import apptainer, bubblewrap
from sandbox.lifetime import cgroup
from sandbox.protocol import Sandbox, SandboxLimits, SandboxProvider, SandboxSpec

PLACE = "/tmp/attack.py"  # noqa: S108 - inside
OWNER = "attack"
SEALED, CONTROL = "sealed", "control"
CONTAINED, SOFT, NOT_CONTAINED, NOT_APPLICABLE = "contained", "soft", "NOT CONTAINED", "not applicable"


class Try(msgspec.Struct, frozen=True):
    """One attempt of an attack. `done` is None if the attack itself failed, so that nothing is known."""

    done: bool | None
    said: str


class AttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table."""

    attack: Attack
    sealed: Try
    control: Try | None
    soft: bool = False  # a limit that nothing on this machine enforces

    @property
    def verdict(self) -> str:
        if self.sealed.done:
            return SOFT if self.soft else NOT_CONTAINED
        if self.control is not None and not self.control.done:
            return NOT_APPLICABLE
        return CONTAINED if self.sealed.done is False else NOT_CONTAINED

    @property
    def said(self) -> str:
        """The control's words where it failed, else the sandbox's."""
        return self.control.said if self.verdict == NOT_APPLICABLE and self.control is not None else self.sealed.said


class Attacker:
    """Attacks on one kind of sandbox. What it starts ends with `attack`."""

    def __init__(self, kind: str, image: str | None, state_dir: Path, tools_dir: Path, around: Surroundings) -> None:
        self._kind, self._image = kind, image
        self._state_dir, self._tools_dir = state_dir, tools_dir
        self._around = around

    async def attack(self, chosen: Sequence[Attack]) -> list[AttackResult]:
        """Raises `SandboxError` if there can be no sandbox to attack."""
        reaching = [each for each in chosen if each.group != LIMITS]
        sealed = await self._in_sandboxes(reaching, SEALED) if reaching else {}
        unsealed = [each for each in chosen if each.control is Control.UNSEALED]
        control = await self._in_sandboxes(unsealed, CONTROL) if unsealed else {}
        for each in chosen:
            if each.control is Control.HOST:
                control[each.name] = await asyncio.to_thread(self._on_host, each)
        control |= await self.on_naive([each for each in chosen if each.control is Control.NAIVE])
        greedy, groups = [each for each in chosen if each.group == LIMITS], cgroup.delegated()
        sealed |= await self._over_limits(greedy, limits.NARROW)
        control |= await self._over_limits([each for each in greedy if each.control is Control.WIDE], limits.WIDE)
        return [
            AttackResult(
                attack=each,
                sealed=sealed[each.name],
                control=control.get(each.name),
                soft=each.group == LIMITS and not limits.held_by(groups, each.program),
            )
            for each in chosen
        ]

    def _provider(self, of: str, edit: Callable[[bytes], bytes] | None = None) -> SandboxProvider:
        sealed = of == SEALED
        match self._kind:
            case apptainer.KIND:
                return apptainer.ApptainerProvider(
                    "attack", self._state_dir, None, self._tools_dir, sealed=sealed, edit=edit
                )
            case bubblewrap.KIND:
                return bubblewrap.BubblewrapProvider("attack", self._state_dir, None, sealed=sealed, edit=edit)
            case "remote":
                raise SandboxUnavailable("remote sandboxes are attacked where they are: run this on their server")
            case _:
                raise SandboxUnavailable(
                    f"{self._kind!r} sandboxes contain nothing, so there is nothing to attack: name another --kind"
                )

    async def _in_sandboxes(self, chosen: Sequence[Attack], of: str) -> dict[str, Try]:
        provider = self._provider(of)
        made: list[Sandbox] = []
        try:
            made = [await self._sandbox(provider)]
            made += [await self._sandbox(provider)]
            await tried(made[1], "leave_note", self._around.facts(of))
            found = {}
            for each in chosen:
                if each.control is Control.NAIVE:
                    found[each.name] = await on_wire(made[0], each)
                elif not each.leaves:
                    found[each.name] = await tried(made[0], each.program, self._facts(each, of))
            leaving = [each for each in chosen if each.leaves]
            tries = [await tried(made[0], each.program, self._facts(each, of)) for each in leaving]
            while made:
                await made.pop().close()
            return found | {each.name: self._left(each, one, of) for each, one in zip(leaving, tries, strict=True)}
        finally:
            for sandbox in made:
                await sandbox.close()
            await provider.aclose()

    async def on_naive(self, chosen: Sequence[Attack]) -> dict[str, Try]:
        """Each in a sandbox of its own, which lacks what this attack meets and does not outlast it."""
        found: dict[str, Try] = {}
        for each in chosen:
            provider = self._provider(CONTROL, functools.partial(naive, each.program))
            try:
                sandbox = await self._sandbox(provider)
                try:
                    found[each.name] = await on_wire(sandbox, each, control=True)
                finally:
                    await sandbox.close()
            finally:
                await provider.aclose()
        return found

    async def _over_limits(self, chosen: Sequence[Attack], bounds: SandboxLimits) -> dict[str, Try]:
        """Each in a sandbox of its own, since it may be the end of it."""
        provider = self._provider(SEALED)
        try:
            return {each.name: await self._greedy(provider, each, bounds) for each in chosen}
        finally:
            await provider.aclose()

    async def _greedy(self, provider: SandboxProvider, attack: Attack, bounds: SandboxLimits) -> Try:
        async with contextlib.AsyncExitStack() as end:

            async def made(**about: Any) -> Sandbox:
                sandbox = await self._sandbox(provider, **about)
                end.push_async_callback(sandbox.close)
                return sandbox

            if attack.program == "starve":
                pair = await made(limits=limits.SPINNING), await made(evaluates=True)
                left = await limits.starved(*pair, PLACE)
                return Try(
                    bool(left), f"a neighbour has {left}" if left else "a neighbour keeps more than half of its CPU"
                )
            sandbox = await made(limits=bounds)
            if attack.program == "flood":
                kept = await limits.flood(sandbox)
                return Try(bool(kept), kept or "the rest was dropped")
            result = await tried(sandbox, attack.program, self._facts(attack, SEALED))
            return (
                result if await limits.answers(sandbox) else Try(True, f"no other command is answered ({result.said})")
            )

    async def _sandbox(self, provider: SandboxProvider, **about: Any) -> Sandbox:
        sandbox = await provider.create(SandboxSpec(owner=OWNER, image=self._image, **about))
        await sandbox.write_file(PLACE, self._around.program)
        if (await sandbox.run(["python3", "-c", ""])).exit_code != 0:
            await sandbox.close()
            raise SandboxError("the attacks are Python programs, and this image has none: name another --image")
        return sandbox

    def _facts(self, attack: Attack, of: str) -> dict[str, Any]:
        return {**self._around.facts(of), **attack.facts, "left": self._mark(attack, of)}

    def _mark(self, attack: Attack, of: str) -> str:
        return f"{self._around.canary}-{attack.name}-{of}"

    def _on_host(self, attack: Attack) -> Try:
        result = _read(*self._around.run_here(attack.program, self._facts(attack, CONTROL)))
        return self._left(attack, result, CONTROL) if attack.leaves else result

    def _left(self, attack: Attack, result: Try, of: str) -> Try:
        """Judges by what is there after the end of the sandbox, or of the process group."""
        left = self._around.take_away(self._mark(attack, of))
        if not result.done:
            return Try(None, result.said)
        return Try(bool(left), f"still there: {', '.join(left)}" if left else "gone")


async def on_wire(sandbox: Sandbox, attack: Attack, *, control: bool = False) -> Try:
    """Silence counts, except in the control of an attack that aims at something else: the machine may be slow."""
    silencing = attack.program in wire.SILENCING
    patience_s = wire.CONTROL_S if control and silencing else wire.PATIENCE_S
    try:
        async with asyncio.timeout(patience_s):
            achieved = await wire.carried_out(attack.program, sandbox)
    except TimeoutError:
        return Try(None if control and not silencing else True, f"no answer within {patience_s:g} s")
    return Try(bool(achieved), achieved or "refused, and the next command works")


async def tried(sandbox: Sandbox, program: str, facts: Mapping[str, Any]) -> Try:
    """Carries an attack out that lies at `PLACE`."""
    try:
        result = await sandbox.run(["python3", PLACE, program, json.dumps(facts)], timeout_s=PROGRAM_S)
    except SandboxOverrun as error:
        return Try(False, f"the sandbox has ended: {error}")
    except SandboxError as error:
        return Try(None, f"the sandbox is lost: {error}")
    if result.exit_code in limits.KILLED and not result.stdout:
        return Try(False, "it was killed")
    return _read(result.exit_code, result.stdout or result.stderr)


def _read(exit_code: int, output: bytes) -> Try:
    try:
        return msgspec.json.decode(output, type=Try)
    except msgspec.MsgspecError:
        last = output.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Try(None, f"the attack itself failed with {exit_code}: {last}")


def attack(
    kind: str, image: str | None, state_dir: Path, tools_dir: Path, names: Collection[str] = ()
) -> list[AttackResult]:
    """Carries out all attacks, or the named ones. Call it before the process has threads."""
    chosen = [each for each in attacks() if not names or each.name in names]
    with Surroundings() as around:
        return asyncio.run(Attacker(kind, image, state_dir, tools_dir, around).attack(chosen))


def report(results: Sequence[AttackResult]) -> int:
    """Prints the table; an exit code. 1: something is not contained."""
    for each in results:
        print(f"{each.attack.group:<10}  {each.attack.name:<22}  {each.verdict:<14}  {each.said}".rstrip())
    counts = Counter(each.verdict for each in results)
    print(", ".join(f"{counts[verdict]} {verdict}" for verdict in (CONTAINED, SOFT, NOT_CONTAINED, NOT_APPLICABLE)))
    if counts[SOFT]:
        print(limits.SOFT)
    return int(counts[NOT_CONTAINED] > 0)
