"""The token-exact record of one job.

A trajectory is one or more segments. A segment is one unbroken token sequence: prompt ids, then response ids that
hold sampled tokens (mask 1) and what the environment put between them (mask 0). A break of the prefix starts a new
segment and is never repaired; a conversation that parts gives one segment for each of its ends. Each segment with a
sampled token is a row to train on, and a token has mask 1 in one row alone. `check` raises when arrays, spans and turns
do not tell the same story.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from prorl_mq.schema.images.placed import Misplaced, PlacedImage, PromptImage, check_placed

FIRST = 1  # schema version of what does not say it
NARROW: Final = 256  # experts whose numbers fit into a byte; else two
FAILING_TOOLS: Final = 16  # that a record names
INHERITED: Final = "inherited"  # why a turn is not trained: another sample has sampled it


class TrajectoryError(Exception):
    """The arrays of a trajectory do not fit together."""


class RoutedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """The model's routing, as its configuration has it. Layers are all hidden layers, dense ones too."""

    layers: Annotated[int, Meta(ge=1, le=1024)]
    top_k: Annotated[int, Meta(ge=1, le=256)]
    experts: Annotated[int, Meta(ge=2, le=32768)]

    @property
    def bytes_an_id(self) -> int:
        return 1 if self.experts <= NARROW else 2

    @property
    def bytes_a_token(self) -> int:
        return self.layers * self.top_k * self.bytes_an_id


class ExpertRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The experts that tokens `[start, end)` of a sequence were sent to: a row each of `layers` times `top_k` numbers,
    little-endian. The last token of a sequence was never put through the model: n tokens have n - 1 rows.
    """

    of: RoutedExperts
    start: int
    data: bytes

    @property
    def rows(self) -> int:
        return len(self.data) // self.of.bytes_a_token

    @property
    def end(self) -> int:
        return self.start + self.rows

    def until(self, end: int) -> "ExpertRoutes":
        """Those in front of row `end`; itself where there are no others."""
        if end >= self.end:
            return self
        return msgspec.structs.replace(self, data=self.data[: max(0, end - self.start) * self.of.bytes_a_token])

    def since(self, start: int) -> "ExpertRoutes":
        """Those from row `start` on."""
        gone = max(0, start - self.start)
        return msgspec.structs.replace(self, start=self.start + gone, data=self.data[gone * self.of.bytes_a_token :])


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled tokens `[start, end)` of a segment's response, by one backend.

    `version` is the policy version at the start and end of the call: equal unless an update overlapped it;
    None where the backend does not tell. `raw_logprobs`: the log-probabilities are of another distribution than these
    tokens were drawn from, and the batch asked to have them all the same.
    """

    start: int
    end: int
    backend: str
    version: tuple[str, str] | None = None
    raw_logprobs: bool = False


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of the agent, as it was executed."""

    name: str
    arguments: str  # JSON text; of a call that could not be read, what the model wrote
    result: str
    ok: bool
    seconds: float
    refused: bool = False  # it was wrong and did not run: bad JSON, no such tool, wrong arguments


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation as it was given to the chat template, without the template's text."""

    role: str  # system, user, tool, assistant
    content: str


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One completion and what followed it."""

    segment: int
    prompt_tokens: int  # all that was sent: the segment's prompt and the response so far
    completion_tokens: int
    cached_tokens: int | None  # prefix-cache hits as the backend reports them
    finish_reason: str  # stop, length, abort
    llm_seconds: float
    text: str  # the completion decoded for people; never fed back
    tool_calls: Sequence[ToolCall] = ()
    stop_token: int | None = None  # the id that ended it, where the backend tells
    started_seconds: float = 0.0  # after the start of the rollout
    reply: str = ""  # what an environment said to a turn that called no tool
    content: str | None = None  # the completion's text without thought, calls and markers; None in older records
    reasoning: str = ""  # its thought
    client_calls: Sequence[tuple[str, str]] = []  # calls that a harness runs itself, or nobody: as `ToolCall` has them
    following: Sequence[PromptMessage] = []  # messages that a harness sent behind it
    left_out: str = ""  # why its tokens have mask 0: superseded, unread, side, inherited; empty: they are trained
    rewritten: int = 0  # earlier turns that the request brought back with other calls, and that were known by their ids
    session: str = ""  # the agent of the harness that asked, as it calls it
    model: str = ""  # of another pool, as the task family calls it; empty: the policy


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One unbroken token sequence. `loss_mask`, `logprobs` and `response_ids` have one length."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]  # 1 for sampled tokens, 0 for inserted ones
    logprobs: Sequence[float | None]  # as the backend sent them; None exactly where the mask is 0
    spans: Sequence[Span] = ()
    opened_by: Literal["start", "compaction", "break", "branch", "other"] = "start"  # branch: its prompt is a part of
    # an earlier segment and more; other: another conversation; break: it holds an answer that was not sampled
    prompt_text: str = ""  # the prompt decoded for people
    messages: Sequence[PromptMessage] = []  # that the prompt was made of
    keeps_thinking: bool = False  # it holds thoughts that the chat template would have dropped
    routes: ExpertRoutes | None = None  # of all its tokens but the last one, where the batch asked for them
    images: Sequence[PlacedImage] = []  # in the order of their ids

    @property
    def raw_logprobs(self) -> bool:
        """True if some of its log-probabilities are of another distribution than their tokens were drawn from."""
        return any(span.raw_logprobs for span in self.spans)


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """Data that RUN handed to EVAL beside the trajectory, from which a reward can be made again."""

    export: Any = None  # an answer, a patch: as the task family made it
    agent_error: str | None = None


class ForkedFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a forked one begins with: with its turns up to `turn`, which it has itself."""

    job_id: str  # run:group:index
    turn: int  # the last one that both have, from 0


class HostReached(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Connections of a rollout's sandbox to one host, or what was refused. `refused` is empty for those that opened."""

    host: str  # NAME:PORT, or what was asked for in its place
    refused: str = ""
    connections: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a job. Temperature, top-p and top-k belong to it: without them log-probabilities mean nothing."""

    segments: Sequence[Segment]
    turns: Sequence[Turn]
    # finish, answer, max_turns, max_tokens, context, time, protocol, cancelled, sandbox, exit code N, intercepted: WHY
    stop_reason: str
    truncated_by: str | None = None  # turns, tokens, context, time
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    tools: Sequence[Mapping[str, Any]] = []  # as the chat template showed them to the model
    schema: int = FIRST
    artefact: bytes = (
        b""  # `HandedOver` in MessagePack; empty: EVAL was not asked, it is too large, or the record older
    )
    forked_from: ForkedFrom | None = None  # its first turns are of that job, with mask 0; they are trained there
    egress: Sequence[HostReached] = []  # of its sandbox while RUN lasted
    images: Sequence[PromptImage] = []  # that the model was shown; segments tell where
    image_id: int | None = None  # the id that stands for an image; None: the model was shown none

    def of_model(self, name: str) -> list[tuple[int, Segment]]:
        """The segments of one model, with their numbers. Empty is the policy's; others are named as in their turns."""
        named = {turn.segment: turn.model for turn in self.turns}
        return [(number, each) for number, each in enumerate(self.segments) if named.get(number, "") == name]

    @property
    def forks(self) -> int:
        """Number of segments beyond the first: prompts that did not continue one before to its end."""
        return sum(segment.opened_by != "start" for segment in self.segments)

    @property
    def tool_failures(self) -> Mapping[str, int]:
        """Number of calls that failed, of each tool; of the 16 that failed most. Names are cut after 64 characters."""
        failed = Counter(call.name[:64] for turn in self.turns for call in turn.tool_calls if not call.ok)
        return dict(failed.most_common(FAILING_TOOLS))

    @property
    def breaks(self) -> int:
        """Number of unintended forks: by a break."""
        return sum(segment.opened_by == "break" for segment in self.segments)


def joined_routes(first: ExpertRoutes | None, then: ExpertRoutes | None) -> ExpertRoutes | None:
    """Two pieces of one sequence. The second is left out where rows between them are missing."""
    if first is None or then is None or then.of != first.of or then.start > first.end:
        return first or then
    kept = first.until(then.start)
    return msgspec.structs.replace(first, data=kept.data + then.data)


def common_rows(one: ExpertRoutes | None, other: ExpertRoutes | None, most: int) -> int:
    """The number of rows, up to `most`, that two sequences begin with."""
    if one is None or other is None or one.of != other.of or one.start or other.start:
        return 0
    size, low, high = one.of.bytes_a_token, 0, min(one.rows, other.rows, most)
    while low < high:
        middle = (low + high + 1) // 2
        alike = one.data[low * size : middle * size] == other.data[low * size : middle * size]
        low, high = (middle, high) if alike else (low, middle - 1)
    return low


def check(trajectory: Trajectory) -> None:
    """Raises `TrajectoryError` naming the segment or turn and the rule it breaks."""
    for number, segment in enumerate(trajectory.segments):
        _check_arrays(number, segment)
        wanted = "start" if number == 0 else "compaction, break, branch or other"
        if (segment.opened_by == "start") != (number == 0):
            raise TrajectoryError(f"segment {number}: opened by {segment.opened_by}, not by {wanted}")
        spans = [(span.start, span.end) for span in segment.spans]
        if _mask(number, "span", spans, len(segment.loss_mask)) != list(segment.loss_mask):
            raise TrajectoryError(f"segment {number}: its spans do not cover the tokens that its mask calls sampled")
        _check_images(trajectory, number, segment)
    if trajectory.turns:
        _check_turns(trajectory)


def _check_arrays(number: int, segment: Segment) -> None:
    length = len(segment.response_ids)
    if len(segment.loss_mask) != length or len(segment.logprobs) != length:
        lengths = f"{length} ids, {len(segment.loss_mask)} mask, {len(segment.logprobs)} log-probabilities"
        raise TrajectoryError(f"segment {number}: arrays differ in length: {lengths}")
    if min(segment.prompt_ids, default=0) < 0 or min(segment.response_ids, default=0) < 0:
        raise TrajectoryError(f"segment {number}: a token id is negative")
    if not {0, 1}.issuperset(segment.loss_mask):
        raise TrajectoryError(f"segment {number}: its mask has other values than 0 and 1")
    _check_routes(number, segment)
    for place, (mask, logprob) in enumerate(zip(segment.loss_mask, segment.logprobs, strict=True)):
        if (logprob is None) == mask:
            raise TrajectoryError(f"segment {number}, token {place}: mask {mask} with log-probability {logprob}")
        if mask and not math.isfinite(logprob or 0.0):
            raise TrajectoryError(f"segment {number}, token {place}: its log-probability is {logprob}")


def _check_routes(number: int, segment: Segment) -> None:
    routes = segment.routes
    if routes is None:
        return
    rows = len(segment.prompt_ids) + len(segment.response_ids) - 1
    if routes.start or len(routes.data) != rows * routes.of.bytes_a_token:
        raise TrajectoryError(
            f"segment {number}: routes of tokens [{routes.start}, {routes.end}) in {len(routes.data)} bytes; all "
            f"{rows + 1} tokens but the last one have some"
        )


def _check_images(trajectory: Trajectory, number: int, segment: Segment) -> None:
    if trajectory.image_id is None:
        if segment.images or trajectory.images:
            raise TrajectoryError(f"segment {number}: there are images, and no id that stands for one")
        return
    ids, count = [*segment.prompt_ids, *segment.response_ids], len(trajectory.images)
    try:
        check_placed(ids, segment.loss_mask, segment.images, count, trajectory.image_id)
    except Misplaced as error:
        raise TrajectoryError(f"segment {number}: {error}") from None


def _check_turns(trajectory: Trajectory) -> None:
    """Each trained token belongs to one turn, and each turn begins where the prompt that it was sent ends. The turns
    that a forked sample has from another one are its first ones, and are not trained.
    """
    shared = trajectory.forked_from.turn + 1 if trajectory.forked_from is not None else 0
    if [turn.left_out == INHERITED for turn in trajectory.turns] != [
        number < shared for number in range(len(trajectory.turns))
    ]:
        raise TrajectoryError(f"its first {shared} turns, and no others, must be left out as {INHERITED}")
    found: list[list[tuple[int, int]]] = [[] for _ in trajectory.segments]
    for number, turn in enumerate(trajectory.turns):
        if not 0 <= turn.segment < len(found):
            raise TrajectoryError(f"turn {number}: segment {turn.segment} of {len(found)}")
        segment = trajectory.segments[turn.segment]
        start = turn.prompt_tokens - len(segment.prompt_ids)
        end = start + turn.completion_tokens
        if not turn.left_out and turn.completion_tokens:
            found[turn.segment].append((start, end))
        elif turn.left_out and (start < 0 or end > len(segment.loss_mask) or any(segment.loss_mask[start:end])):
            raise TrajectoryError(f"turn {number}: it is left out as {turn.left_out}, and trained or not there")
    for number, (turns, segment) in enumerate(zip(found, trajectory.segments, strict=True)):
        if _mask(number, "turn", turns, len(segment.loss_mask)) != list(segment.loss_mask):
            raise TrajectoryError(f"segment {number}: its turns do not cover the tokens that its mask calls sampled")


def _mask(number: int, what: str, ranges: Sequence[tuple[int, int]], length: int) -> list[int]:
    """The mask that ranges of sampled tokens stand for: in order, not empty, without overlap, inside the response."""
    mask = [0] * length
    before = 0
    for start, end in ranges:
        if not before <= start < end <= length:
            raise TrajectoryError(f"segment {number}: {what} [{start}, {end}) after token {before} of {length}")
        mask[start:end] = [1] * (end - start)
        before = end
    return mask
