"""Samples of a fake backend: deterministic ids and log-probabilities, and a model of the prefix cache."""

import hashlib
import random
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec


class FakeSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a request, the same for every protocol."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    logprobs: int | bool | None = None
    min_p: float | None = None  # None, here and below: the request leaves it to the server
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled continuation. Without log-probabilities they are made up, always the same for the same ids."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None  # None: stop, or length where it fills `max_tokens`


ReplyFunction = Callable[[Sequence[int], FakeSampling], Reply]


def _digest(ids: Sequence[int], salt: str) -> int:
    return int.from_bytes(hashlib.blake2b(array("q", ids).tobytes() + salt.encode(), digest_size=8).digest(), "big")


def made_up_logprobs(ids: Sequence[int]) -> list[float]:
    """One negative number per id, from the ids alone."""
    return [-((place * 2654435761 + token * 40503) % 99991 + 1) / 10007 for place, token in enumerate(ids)]


def pseudo_random(*, vocabulary: int = 1000, end_id: int | None = None, mean_tokens: int = 16) -> ReplyFunction:
    """Random ids below `vocabulary`, the same for the same prompt and seed on every fake backend.

    A reply ends with the first stop id of the request, or `end_id`; without either it fills `max_tokens`.
    """

    def reply(prompt_ids: Sequence[int], params: FakeSampling) -> Reply:
        source = random.Random(_digest(prompt_ids, f"{params.seed} {params.temperature}"))  # noqa: S311  (no secret)
        end = params.stop_token_ids[0] if params.stop_token_ids else end_id
        limit = params.max_tokens if params.max_tokens is not None else mean_tokens
        length = limit if end is None else source.randint(1, 2 * mean_tokens)
        ids = [source.randrange(vocabulary) for _ in range(length)]
        banned = {*params.stop_token_ids, end_id}
        ids = [token if token not in banned else (token + 1) % vocabulary for token in ids]
        return Reply(ids=ids) if end is None else Reply(ids=[*ids, end], finish_reason="stop")

    return reply


def autoregressive(
    *, vocabulary: int = 1000, end_id: int | None = None, tokens: int = 40, weights: str = ""
) -> ReplyFunction:
    """A model without chance: each id, and its log-probability, come of all ids before it alone. So what continues an
    answer is what that answer had gone on with.

    Each token is the last one with a chance of 1 in `tokens`: the first stop id, or `end_id`. Models of other `weights`
    sample otherwise. A seed draws by the place in the answer, as a generator does that each request starts again.
    """

    def reply(prompt_ids: Sequence[int], params: FakeSampling) -> Reply:
        end = params.stop_token_ids[0] if params.stop_token_ids else end_id
        drawn = params.seed if params.temperature > 0 else None
        limit = params.max_tokens if params.max_tokens is not None else tokens + 1
        context, ids, logprobs = list(prompt_ids), list[int](), list[float]()
        for place in range(limit):
            state = _digest(context, f"{weights} {drawn} {place if drawn is not None else ''}")
            last = end is not None and state % tokens == 0
            ids.append(end if last and end is not None else _other(state // tokens % vocabulary, end))
            logprobs.append(-(state % 99991 + 1) / 10007)
            context.append(ids[-1])
            if last:
                break
        stopped = bool(ids) and ids[-1] == end
        return Reply(ids=ids, logprobs=logprobs, finish_reason="stop" if stopped else "length")

    return reply


def _other(token: int, end: int | None) -> int:
    return token + 1 if token == end else token


def scripted(replies: Sequence[Sequence[int]]) -> ReplyFunction:
    """The replies in order, one a turn; the last is repeated.

    The turn is read off the prompt: it is the number of replies found there, one after the other. So a conversation
    continues from where it was on another backend with the same script, and conversations may interleave.
    """
    if not replies:
        raise ValueError("a script needs at least one reply")
    needles = [array("q", reply).tobytes() for reply in replies]

    def reply(prompt_ids: Sequence[int], _params: FakeSampling) -> Reply:
        haystack = array("q", prompt_ids).tobytes()
        at = turn = 0
        while turn < len(needles) - 1 and (found := _find(haystack, needles[turn], at)) >= 0:
            at = found + len(needles[turn])
            turn += 1
        return Reply(ids=replies[turn], finish_reason="stop")

    return reply


def _find(haystack: bytes, needle: bytes, at: int) -> int:
    """Like `bytes.find`, at multiples of eight only."""
    found = haystack.find(needle, at)
    while found >= 0 and found % 8:
        found = haystack.find(needle, found + 1)
    return found


def cut_to_limit(reply: Reply, limit: int) -> Reply:
    """The reply as a server would give it under a limit of tokens; a reply that is cut ends by `length`."""
    if len(reply.ids) > limit:
        logprobs = None if reply.logprobs is None else reply.logprobs[:limit]
        return Reply(ids=reply.ids[:limit], logprobs=logprobs, finish_reason="length")
    finish = reply.finish_reason or ("length" if len(reply.ids) == limit else "stop")
    return msgspec.structs.replace(reply, finish_reason=finish)


class PrefixCache:
    """Model of a server's cache: how many tokens of a prompt it finds, in whole blocks; the oldest is evicted first."""

    def __init__(self, *, block_tokens: int = 16, capacity_blocks: int = 1 << 16) -> None:
        self.block_tokens = block_tokens
        self.capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def clear(self) -> None:
        self._blocks.clear()

    def _chain(self, ids: Sequence[int], salt: str) -> list[bytes]:
        data = array("q", ids).tobytes()
        size = self.block_tokens * 8
        running = hashlib.blake2b(salt.encode(), digest_size=16)
        keys = []
        for start in range(0, len(data) - size + 1, size):
            running.update(data[start : start + size])
            keys.append(running.digest())
        return keys

    def cached_tokens(self, prompt_ids: Sequence[int], salt: str = "") -> int:
        """Hits for this prompt. The last token is always computed, so a whole prompt is never a hit."""
        hits = 0
        for key in self._chain(prompt_ids[:-1], salt):
            if key not in self._blocks:
                break
            hits += self.block_tokens
        return hits

    def store(self, ids: Sequence[int], salt: str = "") -> None:
        """Remembers prompt and completion of a finished request."""
        for key in self._chain(ids, salt):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self.capacity_blocks:
            self._blocks.popitem(last=False)
