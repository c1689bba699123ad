"""The columns of exported rows as Arrow and Parquet have them."""

from collections.abc import Mapping
from typing import Any, Final

from prorl_mq.converters.table import Row
from prorl_mq.errors import ConfigurationError

MISSING: Final = "this format needs the extra `export`: pip install 'prorl-mq[export]'"


def arrow(missing: str = MISSING) -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Raises `ConfigurationError` with `missing` where they are not installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(missing) from None
    return pa, parquet


def arrow_schema(more: Mapping[str, Any] | None = None) -> Any:
    """The columns of `Row`, then `more`, each with its Arrow type."""
    pa, _ = arrow()
    text, ids, whole = pa.string(), pa.list_(pa.int32()), pa.int32()
    message = pa.struct(
        [pa.field(name, text, nullable=False) for name in ("role", "content", "tool_calls", "reasoning")]
    )
    span = pa.struct(
        [("start", whole), ("end", whole), ("backend", text), ("version", pa.list_(text)), ("raw_logprobs", pa.bool_())]
    )
    other = {
        "index": whole, "reward": pa.float64(), "replaced": pa.bool_(), "attempt": whole, "turns": whole,
        "segment": whole, "segments": whole, "schema": whole, "forked_turn": whole,
        "share": pa.float64(), "keeps_thinking": pa.bool_(),
        "temperature": pa.float64(), "top_p": pa.float64(), "top_k": pa.int64(),
        "messages": pa.list_(message), "prompt_ids": ids, "response_ids": ids, "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float64()), "spans": pa.list_(span),
        "routed_experts": pa.binary(), "experts_shape": pa.list_(whole),
    }  # fmt: skip
    own = [pa.field(name, other.get(name, text)) for name in Row.__struct_fields__]
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in (more or {}).items())])
