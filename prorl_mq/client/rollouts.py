"""Rollouts for a trainer that asks for samples and waits: many at once over one run, each acknowledged when given.

    async with AsyncClient(url) as client, Rollouts(client, "run") as rollouts:
        samples = await rollouts.of(task, n=8)

One reader follows the run and hands each closed group to the call that asked for it.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from prorl_mq import chance
from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.converters.rollout import TRAINABLE, Rollout, rollouts
from prorl_mq.errors import InvalidBatch, NotTrainable, ProrlError, ServiceError
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Purpose, SampleRecord, Sampling, Task

_OPEN: Final[dict[tuple[asyncio.AbstractEventLoop, str, str, str], tuple[AsyncClient, "Rollouts"]]] = {}
_NAMES: Final[Mapping[str, str]] = dict.fromkeys(
    ("max_tokens", "max_new_tokens", "max_generate_length", "max_completion_tokens"), "max_tokens_per_turn"
)
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {  # what leaves a distribution, or an end, as the policy makes it
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "min_p": (0,),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "stop": ("", [], ()),
    "stop_token_ids": ([], ()),
    "logit_bias": ({},),
    "allowed_token_ids": ([], ()),
    "bad_words": ([], ()),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
}
CAUSES: Final = 3  # as many are told in one message


class Rollouts:
    """Asks for samples in one run. Leaving it cancels what was asked for and has not come.

    `model`: whose rows are wanted where a task trains several models, by the name that the task gives it; the policy's
    if it is empty. `Rollout.of` gives those of another model of the same sample.
    """

    def __init__(self, client: AsyncClient, run_id: str, *, pool: str = "policy", model: str = "") -> None:
        self._client, self._run_id, self._pool, self._model = client, run_id, pool, model
        self._asked: dict[str, asyncio.Future[ClosedGroup]] = {}
        self._given_up: set[str] = set()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        left = list(self._asked.items())
        for _, future in left:
            if not future.done():
                future.set_exception(NotTrainable(f"nobody reads the results of run {self._run_id!r} any more"))
        await asyncio.gather(*(self._end(name) for name, _ in left))

    async def of(
        self, task: Task, *, n: int = 1, sampling: Sampling | None = None, purpose: Purpose = Purpose.TRAIN
    ) -> list[Rollout]:
        """N samples of a task, each with a reward and tokens; refills have taken the place of lost ones.

        Raises `NotTrainable` if the service could not get so many. A call that is cancelled ends its rollouts.
        """
        came = await self.ask(task, n=n, sampling=sampling, purpose=purpose)
        if came.lost:
            raise NotTrainable(came.lost)
        return came.rollouts

    async def ask(
        self, task: Task, *, n: int = 1, sampling: Sampling | None = None, purpose: Purpose = Purpose.TRAIN
    ) -> "RolloutAnswer":
        """As `of`, but what has come is returned also where it is less than was asked for, with the reason."""
        name = chance.name(16)
        self._asked[name] = asyncio.get_running_loop().create_future()
        group = GroupRequest(task=task, n=n, group_id=name)
        batch = BatchRequest(
            run_id=self._run_id, batch_id=name, groups=[group], sampling=sampling or Sampling(), pool=self._pool,
            purpose=purpose,
        )  # fmt: skip
        try:
            await self._client.submit(batch)
            if self._reader is None or self._reader.done():  # a run exists from its first batch on
                self._reader = asyncio.create_task(self._read(), name=f"results of {self._run_id}")
            closed = await self._asked[name]
        except BaseException:  # also a submission whose answer was lost
            await asyncio.shield(self._end(name))
            raise
        finally:
            del self._asked[name]
        try:
            found = await self._with_tokens(closed)
        finally:  # also of a group whose tokens cannot be read: nobody asks for it by its name again
            await asyncio.shield(self._acknowledge(closed))
        return RolloutAnswer(rollouts=found, lost=_lost(task, n, found, closed.record, self._model))

    async def _end(self, name: str) -> None:
        self._given_up.add(name)
        with contextlib.suppress(ProrlError):  # it has closed, or was never there
            await self._client.cancel("group", f"{self._run_id}:{name}")

    async def _acknowledge(self, closed: ClosedGroup) -> None:
        with contextlib.suppress(ProrlError):  # samples that are here are given all the same
            await self._client.ack(self._run_id, [closed.cursor])

    async def _with_tokens(self, closed: ClosedGroup) -> list[Rollout]:
        jobs = [sample.job_id for sample in closed.record.samples if sample.trajectory and not sample.replaced]
        trajectories = await asyncio.gather(*map(self._client.trajectory, jobs))
        return rollouts(closed.record, dict(zip(jobs, trajectories, strict=True)), self._model)

    async def _read(self) -> None:
        """Until it is cancelled. An error reaches every call that waits; the next one begins a new reader."""
        try:
            async for closed in self._client.results(self._run_id):
                await self._hand(closed)
        except Exception as error:  # whatever it is: a call that hears nothing never returns
            status = error.status if isinstance(error, ServiceError) else 0
            for future in self._asked.values():
                if not future.done():
                    said = f"the results of run {self._run_id!r} cannot be read: {type(error).__name__}: {error}"
                    future.set_exception(ServiceError(said, status=status))

    async def _hand(self, closed: ClosedGroup) -> None:
        asked = self._asked.get(closed.record.group_id)
        if asked is not None and not asked.done():
            asked.set_result(closed)
        elif closed.record.group_id in self._given_up:  # nobody else would acknowledge it
            self._given_up.discard(closed.record.group_id)
            await self._acknowledge(closed)


class RolloutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a group that may be trained on. `lost` says why there are fewer than were asked for; or empty."""

    rollouts: list[Rollout]
    lost: str


def _lost(task: Task, n: int, found: list[Rollout], record: GroupRecord, model: str) -> str:
    if len(found) >= n:
        return ""
    had = {each.sample.job_id for each in found}
    causes = [
        f"{each.job_id} ended {each.outcome}{_cause(each, model)}" for each in record.samples if each.job_id not in had
    ]
    told = "; ".join(causes[:CAUSES]) + (f"; and {len(causes) - CAUSES} more" if len(causes) > CAUSES else "")
    why = f"{len(found)} of {n} samples can be trained on ({record.verdict}: {record.reason or 'no reason'})"
    return f"task {task.task_id!r} ({task.data_source}): {why}" + (f". {told}" if told else "")


def _cause(sample: SampleRecord, model: str) -> str:
    if sample.error is not None:
        return f": {sample.error.type}: {sample.error.message}"
    if sample.outcome not in TRAINABLE or sample.reward is None:
        return ""
    return " and sampled no token" + (f" that model {model!r} is trained on" if model else "")


async def shared(url: str, run_id: str, *, token: str | None = None, model: str = "") -> Rollouts:
    """The one of this event loop, for trainers that make an object for each sample and tell it nothing of an end."""
    place = (asyncio.get_running_loop(), url, run_id, model)
    if place not in _OPEN:
        client = AsyncClient(url, token=token)
        _OPEN[place] = (client, Rollouts(client, run_id, model=model))
        await _OPEN[place][1].__aenter__()
    return _OPEN[place][1]


async def close_shared() -> None:
    """Ends those of this event loop, for who knows when it ends."""
    for place in [place for place in _OPEN if place[0] is asyncio.get_running_loop()]:
        client, rollouts = _OPEN.pop(place)
        await rollouts.__aexit__(None, None, None)
        await client.aclose()


def sampling_of(given: Mapping[str, Any], **limits: int) -> Sampling:
    """Sampling from a trainer's own words: what it calls differently is renamed, what only its engine knows is left.

    Raises `InvalidBatch` for what would change the distribution or the end of a completion, and is not known here.
    `limits` are fields of `Sampling` that hold where `given` says nothing.
    """
    known: dict[str, Any] = limits | {
        _NAMES.get(name, name): value for name, value in given.items() if value is not None
    }
    for name, value in known.items():
        if name in _NEUTRAL and value not in _NEUTRAL[name]:
            neutral = repr(_NEUTRAL[name][0])
            raise InvalidBatch(f"rollouts cannot be sampled with {name}={value!r}: set it to {neutral} in the trainer")
    return Sampling(**{name: value for name, value in known.items() if name in Sampling.__struct_fields__})
