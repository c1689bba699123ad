"""Routes of tokens as backends send them, checked and made as narrow as the number of experts allows.

A call is asked for the rows that nobody has yet: of a turn that continues, those since the last turn's. vLLM sends an
array in numpy's `.npy` form, which tells its shape; SGLang bare int32 numbers, whose shape the batch tells.
"""

import ast
import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from prorl_mq.schema.codec import decode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import ExpertRoutes, RoutedExperts, Trajectory, joined_routes
from workers.inference.protocol import Completion, InferenceError, Policy

if TYPE_CHECKING:
    from workers.inference.request import GenerateRequest

_MAGIC: Final = b"\x93NUMPY"
_TYPES: Final = {"|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<u4": 4, "<i4": 4, "<i8": 8}
_SGLANG_BYTES: Final = 4
_CHANCE: Final = 64  # zeros in a row that are no chance where each token has one expert a layer


class RoutesMissing(InferenceError):
    """A backend sends no routes, though the batch asks for them."""

    retryable = False


class RoutesMisshapen(InferenceError):
    """A backend's routes are of other tokens, layers or experts than the batch tells."""

    retryable = False


class RoutesZero(InferenceError):
    """A backend's routes are zeros: its kernels route within themselves, and it saw nothing of it."""

    retryable = False


class RoutesNeedFiles(Exception):
    """Routes are asked for where there is no directory for payloads, or where a trainer could not read it."""

    retryable = False
    cause = Cause.NODE


class RoutesAsked(msgspec.Struct, frozen=True):
    """Routes from row `start` on."""

    of: RoutedExperts
    start: int = 0


def asked(sampling: Sampling, start: int) -> dict[str, Any]:
    """The argument of `Policy.generate` for a batch; none where it wants no routes."""
    return {} if sampling.routed_experts is None else {"routes": RoutesAsked(sampling.routed_experts, start)}


def behind(request: RoutesAsked | None, had: ExpertRoutes | None) -> RoutesAsked | None:
    """The rest of what was asked for, behind the rows that have come."""
    return request if request is None or had is None else RoutesAsked(request.of, had.end)


def with_logged(completion: Completion, data: bytes | None) -> Completion:
    """A completion of a log with its routes, as a file has them; without, where that is gone."""
    return completion if data is None else msgspec.structs.replace(completion, routes=decode(data, ExpertRoutes))


async def whole(policy: Policy, context: Sequence[int], completion: Completion, wanted: dict[str, Any]) -> Completion:
    """The completion with all routes. Those of a call that was cut, or of a log whose file is gone, are asked for
    again: by one token behind all ids but the last, which the context has room for, and which nobody uses. `wanted`:
    arguments of `Policy.generate`.
    """
    request: RoutesAsked | None = wanted.get("routes")
    if request is None:
        return completion
    had = completion.routes
    if had is not None and (had.of, had.start) != (request.of, request.start):
        had = None  # of a log that was written beside another one
    ids = [*context, *completion.ids][:-1]
    if len(ids) <= (request.start if had is None else had.end):
        return completion
    more = await policy.generate(ids, max_tokens=1, temperature=0.0, **{**wanted, "routes": behind(request, had)})
    return msgspec.structs.replace(completion, routes=joined_routes(had, more.routes))


async def with_routes(
    backend: str,
    request: "GenerateRequest",
    completion: Completion,
    sent: bytes | None,
    read: "Callable[[str, bytes | None, RoutesAsked, int, str], ExpertRoutes | None]",
) -> Completion:
    """The completion with the routes that came with it, which are read in a thread: they may be megabytes. As it is
    where none were asked for.
    """
    wanted = request.routes
    if wanted is None:
        return completion
    tokens = len(request.prompt_ids) + len(completion.ids)
    routes = await asyncio.to_thread(read, backend, sent, wanted, tokens, completion.finish_reason)
    return msgspec.structs.replace(completion, routes=routes)


def read_npy(backend: str, sent: bytes | None, request: RoutesAsked, tokens: int, finish: str) -> ExpertRoutes | None:
    """The routes in an answer of vLLM. `tokens`: of prompt and completion. Raises as `_checked`; None for
    a call that was aborted before any.
    """
    if _missing(backend, sent, "start vLLM with --enable-return-routed-experts", finish) or sent is None:
        return None
    width, shape, data = _npy(backend, sent)
    wanted = (_rows(request, tokens), request.of.layers, request.of.top_k)
    if shape != wanted:
        raise RoutesMisshapen(f"backend {backend}: its routes have the shape {shape}, {wanted} {_WANTED}")
    return _checked(backend, data, width, request, tokens)


def read_int32(backend: str, sent: bytes | None, request: RoutesAsked, tokens: int, finish: str) -> ExpertRoutes | None:
    """The same of SGLang."""
    if _missing(backend, sent, "start SGLang with --enable-return-routed-experts", finish) or sent is None:
        return None
    return _checked(backend, sent, _SGLANG_BYTES, request, tokens)


_WANTED: Final = "(tokens, layers, top_k) was asked for; compare sampling.routed_experts with the model's configuration"


def check_kept(sampling: Sampling, trajectory: Trajectory | None) -> None:
    """Raises `RoutesMissing` for a trajectory whose task family has not asked for the routes that its batch wants."""
    if sampling.routed_experts is None or trajectory is None:
        return
    lacking = [number for number, each in enumerate(trajectory.segments) if each.spans and each.routes is None]
    if lacking:
        raise RoutesMissing(
            f"segment {lacking[0]} has no routed experts, which the batch asks for: its task family samples without "
            "run_agent or a harness, and must call the policy with `routes` and keep them"
        )


def _rows(request: RoutesAsked, tokens: int) -> int:
    return max(0, tokens - 1 - request.start)


def _missing(backend: str, sent: bytes | None, what: str, finish: str) -> bool:
    """Raises `RoutesMissing`, but for a call that was aborted: what follows it brings them."""
    if sent is None and finish != "abort":
        raise RoutesMissing(f"backend {backend}: it sends no routed experts, which the batch asks for; {what}")
    return sent is None


def _npy(backend: str, sent: bytes) -> tuple[int, tuple[int, ...], bytes]:
    """Bytes a number, the shape, and the numbers."""
    try:
        size = 2 if sent[6] == 1 else 4
        start = 8 + size
        end = start + int.from_bytes(sent[8:start], "little")
        head = ast.literal_eval(sent[start:end].decode("latin-1"))
        width, shape, by_columns = _TYPES[head["descr"]], tuple(head["shape"]), head["fortran_order"]
    except (ValueError, KeyError, IndexError, TypeError, SyntaxError) as error:
        raise RoutesMisshapen(f"backend {backend}: its routes are no .npy file that can be read: {error!r}") from error
    if by_columns or not sent.startswith(_MAGIC):
        raise RoutesMisshapen(f"backend {backend}: its routes are no .npy file by rows")
    return width, shape, sent[end:]


def _checked(backend: str, data: bytes, width: int, request: RoutesAsked, tokens: int) -> ExpertRoutes:
    """Raises `RoutesMisshapen` and `RoutesZero`."""
    of, rows = request.of, _rows(request, tokens)
    count = rows * of.layers * of.top_k
    if len(data) != count * width:
        raise RoutesMisshapen(
            f"backend {backend}: its routes have {len(data) // width} numbers, and ({rows}, {of.layers}, {of.top_k}) "
            f"{_WANTED}"
        )
    narrow = _narrowed(data, width, of)
    if narrow is None:
        raise RoutesMisshapen(f"backend {backend}: its routes name experts beyond the {of.experts} of the batch")
    _check_zeros(backend, narrow, request)
    return ExpertRoutes(of=of, start=request.start, data=narrow)


def _narrowed(data: bytes, width: int, of: RoutedExperts) -> bytes | None:
    """With as many bytes a number as the experts need; None where one is out of range."""
    size = of.bytes_an_id
    if any(data[place::width].strip(b"\0") for place in range(size, width)):
        return None
    if width != size:
        made = bytearray(len(data) // width * size)
        for place in range(min(size, width)):
            made[place::size] = data[place::width]
        data = bytes(made)
    if size == 1:
        return None if data.translate(None, bytes(range(of.experts))) else data
    return None if max(array("H", data), default=0) >= of.experts else data


def _check_zeros(backend: str, data: bytes, request: RoutesAsked) -> None:
    """No token has the same expert twice in a layer: zeros alone are no routes, but a buffer that nobody has filled."""
    of, size = request.of, request.of.bytes_a_token
    nothing = bytes(size)
    if of.top_k > 1:
        empty = next((at for at in range(0, len(data), size) if data[at : at + size] == nothing), None)
    else:
        empty = 0 if len(data) >= _CHANCE * of.bytes_an_id and not data.strip(b"\0") else None
    if empty is not None:
        row = request.start + empty // size
        raise RoutesZero(
            f"backend {backend}: the routes of token {row} are zeros alone: its kernels route within themselves, where "
            "nothing is captured (vllm#44116); start it with a MoE backend that is not fused with the router "
            "(vLLM: --moe-backend triton)"
        )
