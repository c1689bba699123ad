"""Settings of a batch that samples dynamically (DAPO, arXiv 2503.14476, section 3.2)."""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

CARRY_MS = 3600 * 1000
DEPRECATED: Final = {"deprecated": True}  # fields of 0.1.0 that the next release does not know


class Phase(StrEnum):
    """A batch draws and accepts, then waits for the rest of its groups' records, then has its report."""

    OPEN = "open"
    ENDING = "ending"
    CLOSED = "closed"


class Surplus(StrEnum):
    """Use of the remaining groups when a batch is complete."""

    CARRY = "carry"  # it continues in the run's next batch: nothing is lost, no bias over the run
    ORDERED = "ordered"  # the first groups in the order of their draw count, whenever they end: no bias
    CANCEL = "cancel"  # it is stopped: favours groups that end early


class Reservoir(StrEnum):
    """Sources of prompts in addition to the batch's own groups."""

    BATCH = "batch"  # nowhere: without prompts the batch is exhausted
    RUN = "run"  # the run's prompts, which the trainer keeps filled: without prompts the batch waits


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="spread"):
    """Keeps a group if its largest reward exceeds its smallest by more than `above`."""

    above: Annotated[float, Meta(ge=0.0)] = 0.0


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="accuracy"):
    """Keeps a group if its share of right samples, those with a reward above `right_above`, is within the bounds."""

    least: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    most: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    right_above: float = 0.5


class Predicate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="predicate"):
    """Keeps a group if a function says so; it is found under the entry point group "prorl_mq.filters"."""

    name: Annotated[str, Meta(min_length=1, max_length=96)]
    options: dict[str, Any] = {}


Filter = Spread | Accuracy | Predicate


class Dapo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A target, and how to reach it."""

    target_groups: Annotated[int, Meta(ge=1, le=100_000)]
    filter: Filter = Spread()
    oversample: Annotated[float, Meta(ge=1.0, le=100.0)] = 1.5  # groups in flight over those expected to be needed
    max_groups: Annotated[int, Meta(ge=1)] | None = None  # drawn from reservoirs at most; None: any number
    surplus: Surplus = Surplus.CARRY
    carry_ms: Annotated[int, Meta(ge=1, le=30 * 24 * 3600 * 1000)] = CARRY_MS  # then what nobody took over expires
    reservoir: Reservoir = Reservoir.BATCH
    early_drop: Annotated[bool | float | None, Meta(extra_json_schema=DEPRECATED)] = None  # none, or refused
