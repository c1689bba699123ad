"""Routed experts as the arrays of numpy that trainers take: a row for each token but the last one."""

from typing import TYPE_CHECKING, Any

from prorl_mq.schema.trajectory import ExpertRoutes, RoutedExperts

if TYPE_CHECKING:
    import numpy as np


def array(routes: ExpertRoutes) -> "np.ndarray[Any, Any]":
    """(tokens, layers, top_k): uint8 up to 256 experts, else int16. It is read-only, and copies nothing."""
    import numpy as np

    of = routes.of
    flat = np.frombuffer(routes.data, dtype="|u1" if of.bytes_an_id == 1 else "<i2")
    return flat.reshape(routes.rows, of.layers, of.top_k)


def placeholder(of: RoutedExperts) -> ExpertRoutes:
    """Routes of one token that is not trained: the first experts, each of them once, as trainers check for it."""
    row = b"".join(each.to_bytes(of.bytes_an_id, "little") for each in range(of.top_k)) * of.layers
    return ExpertRoutes(of=of, start=0, data=row)
