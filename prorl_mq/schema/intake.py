"""Messages of a trainer without HTTP on its intake stream, and their answers on its result stream.

An entry of `intake:R` holds one message as MessagePack in field `m`. An entry of `results:R` holds a closed group in
field `r`, the report of a closed batch in field `b`, or an `IntakeAnswer` in field `a`. Every message may be sent twice
with one `reply`: all of them are idempotent, and a client that lost its connection cannot know whether the first
arrived.
"""

from typing import Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from prorl_mq.schema import addresses, forms, strict
from prorl_mq.schema.messages import FIRST, BatchRequest, ForkOrder, Name
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import PauseOrder

MESSAGE_FIELD: Final = b"m"
RESULT_FIELD: Final = b"r"
REPORT_FIELD: Final = b"b"
ANSWER_FIELD: Final = b"a"
TRAINERS: Final = "trainer"  # the consumer group of a result stream, for trainers that read with XREADGROUP

ReplyId = Annotated[str, Meta(min_length=1, max_length=96)]
Cursor = Annotated[str, Meta(pattern=forms.CURSOR)]
Address = Annotated[str, Meta(pattern=forms.ADDRESS)]
Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]
WireProtocol = Literal["vllm-generate", "sglang", "completions", "prorl-generate"]
Directory = Annotated[str, Meta(min_length=1, max_length=4096)]  # as the backends see it
UpdateMode = Literal["keep", "drain", "abort"]


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="submit"):
    """A batch; the answer's value is a `BatchAccepted`."""

    reply: ReplyId
    schema: int = FIRST
    batch: BatchRequest


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ack"):
    """Results that the trainer has; the answer's value is how many of them were deleted just now."""

    reply: ReplyId
    schema: int = FIRST
    cursors: list[Cursor]


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cancel"):
    """The end of a job, group, batch or run, by its public id; the answer's value is a `CancelAnswer`."""

    reply: ReplyId
    schema: int = FIRST
    kind: str
    id: str


class PauseMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="pause"):
    """A pause of a job or run, by its public id; the answer's value is a `PauseAnswer`."""

    reply: ReplyId
    schema: int = FIRST
    kind: str
    id: str
    order: PauseOrder


class ResumeMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="resume"):
    """The end of a pause; the answer's value is a `PauseAnswer`."""

    reply: ReplyId
    schema: int = FIRST
    kind: str
    id: str


class ForkMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="fork"):
    """A fork of a job, by its public id; the answer's value is a `ForkAnswer`."""

    reply: ReplyId
    schema: int = FIRST
    id: str
    order: ForkOrder


class AnnouncePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="policy"):
    """New weights in a pool, which the service loads where `weights` names them; the answer has no value."""

    reply: ReplyId
    schema: int = FIRST
    pool: Name
    version: Version
    mode: UpdateMode = "keep"
    weights: Directory | None = None


class AddBackend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="backend"):
    """One more inference endpoint; the answer's value is `joined` or `known`."""

    reply: ReplyId
    schema: int = FIRST
    pool: Name
    address: Address
    protocol: WireProtocol | None = None
    model: str | None = None
    adapter: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None

    def __post_init__(self) -> None:
        addresses.parse(self.address)


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="configure"):
    """Weight and quotas of the run whose intake this is; the answer's value is a `RunStatus`."""

    reply: ReplyId
    schema: int = FIRST
    settings: RunSettings


class ListRuns(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="runs"):
    """Lists the tenant's runs; the answer's value is a list of `RunStatus`."""

    reply: ReplyId
    schema: int = FIRST


IntakeMessage = (
    Submit
    | Acknowledge
    | Cancel
    | PauseMessage
    | ResumeMessage
    | ForkMessage
    | AnnouncePolicy
    | AddBackend
    | Configure
    | ListRuns
)


class IntakeAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one message. `status` is the HTTP status that the same call would have got."""

    reply: str
    ok: bool
    error: str | None = None
    value: Any = None
    status: int = 0
    retry_after_ms: int = 0
    schema: int = FIRST


def decode_message(data: bytes, other: bytes | None = None) -> IntakeMessage:
    """Raises `msgspec.DecodeError`, or `Misfit` with the field that is wrong: the rules are those of HTTP bodies.

    `other`: a field that the entry has beside its message, or once more.
    """
    if other == MESSAGE_FIELD:
        raise strict.Misfit(f"the entry has the field `{MESSAGE_FIELD.decode()}` twice: one entry is one message")
    if other is not None:
        name = other[:96].decode("utf-8", "backslashreplace")
        raise strict.Misfit(f"unknown field {name!r} of the entry: the message is all in `{MESSAGE_FIELD.decode()}`")
    if not data:
        raise strict.Misfit(f"the entry has no field `{MESSAGE_FIELD.decode()}`")
    if data[:64].lstrip().startswith((b"{", b"[")):  # as MessagePack, a number
        raise strict.Misfit(f"this is JSON: `{MESSAGE_FIELD.decode()}` is MessagePack")
    message: IntakeMessage = strict.decode_msgpack(data, cast("type[IntakeMessage]", IntakeMessage))
    return message


def decode_answer(data: bytes) -> IntakeAnswer:
    return _answers.decode(data)


_answers: Final = msgspec.msgpack.Decoder(IntakeAnswer)
