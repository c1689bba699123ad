"""A `/process` body becomes a batch of one job. Pure.

A job's name has three parts: the sample (instance and trajectory), the caller's `job_id`, the body. So an equal repeat
finds its job again after any restart, another body is another job, and a retry under a new id finds what it retries.
"""

import hashlib
import math
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Sampling, Task
from prorl_mq.schema.task_schema import Schema

CONTEXT_TOKENS: Final = 32768
TURNS: Final = 2  # the contract's default
_ALIASES: Final = ("deepcoder",)  # every name that begins so
_GYM, _GYM_ENTRY = "reasoning_gym", "reasoning_gym_entry"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `sampling_params` that are used; any other key is taken and ignored."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = -1
    seed: int | None = None
    max_output_tokens: int | None = None  # of a turn, in text mode; with tokens, the context alone limits it
    max_model_len: int = CONTEXT_TOKENS
    max_iterations: Annotated[int, Meta(ge=1, le=10_000)] = TURNS
    token_level_generation: bool = True
    is_reasoning_task: bool = False  # one turn without tools
    return_input_ids: bool = True  # ours: false leaves out what the contract repeats in every turn


class CompatRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `/process`."""

    job_id: str
    instance: Mapping[str, Any]
    sampling: SamplingParams
    body: str  # digest of instance and sampling_params

    @property
    def named_source(self) -> str:
        """The data source as the row names it."""
        return str(self.instance.get("data_source") or "swebench")

    @property
    def data_source(self) -> str:
        name = self.named_source
        if name == _GYM and self.instance.get("seed") is None:  # v1's rows bring the entry, ours name its place
            return _GYM_ENTRY
        return next((alias for alias in _ALIASES if name.startswith(alias)), name)

    @property
    def instance_id(self) -> str:
        given = self.instance.get("instance_id")
        if given is not None:
            return str(given)
        about = _mapped(self.instance.get("extra_info"))
        return "_".join([self.named_source, *(str(about.get(name)) for name in ("name", "split", "index"))])

    @property
    def trajectory_id(self) -> Any:
        return self.instance.get("trajectory_id")

    @property
    def sample_key(self) -> str:
        """Begins the names of all jobs of this sample."""
        return _digest(self.instance_id, repr(self.trajectory_id)) + "."

    @property
    def name(self) -> str:
        return f"{self.sample_key}{id_key(self.job_id)}{self.body}"


def rollout(body: Mapping[str, Any]) -> CompatRollout:
    """Raises `msgspec.ValidationError` for a sampling parameter of a wrong type."""
    instance, given = _filled(body["instance"]), _filled(body["sampling_params"])
    told = [msgspec.json.encode(body[part], order="deterministic") for part in ("instance", "sampling_params")]
    return CompatRollout(
        job_id=body.get("job_id") or str(uuid.uuid4()),
        instance=instance,
        sampling=msgspec.convert(given, SamplingParams, strict=False),
        body=_digest(*told),
    )


def _filled(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that are null, or NaN as tables have it."""
    return {name: value for name, value in columns.items() if not _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _mapped(value: Any) -> Mapping[str, Any]:
    """An object, which may be JSON text; empty for anything else."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def id_key(job_id: str) -> str:
    """Stands in the names of all jobs that were sent with this id."""
    return f"id-{_digest(job_id)}."


def batch(call: CompatRollout, schema: Schema, *, run_id: str, name: str, timeout_s: int) -> BatchRequest:
    """The batch that rolls it out. Its own name is new each time: the group's name alone tells repeats."""
    told, stage_ms = call.sampling, timeout_s * 1000
    context = max(16, told.max_model_len)
    per_turn = context if told.token_level_generation else told.max_output_tokens or context
    single = call.sampling.is_reasoning_task
    return BatchRequest(
        run_id=run_id,
        batch_id=f"{name}.{uuid.uuid4().hex[:8]}",
        groups=[GroupRequest(task=_task(call, schema), group_id=name)],
        sampling=Sampling(
            temperature=told.temperature,
            top_p=told.top_p,
            top_k=told.top_k or -1,
            seed=told.seed,
            max_tokens_per_turn=max(1, per_turn),
            max_tokens=context,
            max_context_tokens=context,
            max_turns=1 if single else told.max_iterations,
        ),
        limits=Limits(init_ms=stage_ms, run_ms=stage_ms, eval_ms=stage_ms, total_ms=2 * stage_ms),
        pool=run_id,
        tools=() if single else None,
    )


def _task(call: CompatRollout, schema: Schema) -> Task:
    """Columns that the family's schema does not name may be answers: EVAL alone sees them, if anybody.

    An empty `tools` says that there are none of the row's own, as null does.
    """
    named = {*schema.required, *schema.optional, *schema.sealed}
    given = dict(call.instance)
    if given.get("tools") == "":
        del given["tools"]
    rest = {name: value for name, value in given.items() if name not in named}
    return Task(
        task_id=call.instance_id[:256] or "instance",
        data_source=call.data_source,
        payload={name: value for name, value in given.items() if name in named},
        sealed=rest if schema.open_ended or schema.seals_rest else {},
    )


def _digest(*parts: str | bytes) -> str:
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
        made.update(len(data).to_bytes(8) + data)
    return made.hexdigest()
