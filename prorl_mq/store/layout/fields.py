"""Every field of the hashes `job`, `group` and `batch`: what it holds, which verbs write it, and when it goes.

`job:J` is made by admit and lives until a TTL that settle gives it. `group:G` is made by submit; settle leaves of it
what a repeat and a reader need, and ack removes that. `batch:B` is made by submit and lives until a TTL that
`shared/batch.lua` gives it. A name that ends with a colon stands for one field for each index, verdict or ref that
follows it. The verbs are scripts in `lua`.
"""

from typing import Final, NamedTuple

from prorl_mq.rules.dapo_report import COUNTERS


class Field(NamedTuple):
    """One field of a hash."""

    holds: str
    written_by: frozenset[str]  # verbs
    goes: str = ""  # empty: with its hash


def _field(holds: str, written_by: str, goes: str = "") -> Field:
    return Field(holds, frozenset(written_by.split()), goes)


LOG_GOES: Final = "removed behind RUN, by a failure that begins the rollout again, and by its end"
JOB: Final[dict[str, Field]] = {
    "state": _field(
        "State", "admit advance claim confirm divert fail finish pause promote reap release renew resume stop submit"
    ),
    "stage": _field("Stage", "admit advance fail reap resume submit"),
    "token": _field(
        "text; the fence of every commit", "admit advance divert fail pause promote reap release resume submit"
    ),
    "entry": _field(
        "id of its stream entry; empty while it has none",
        "admit advance confirm divert fail finish pause promote reap release resume stop submit",
    ),
    "stream": _field(
        "key of the stage stream or lane that it is on, or continues on",
        "admit advance divert fail reap release resume submit",
    ),
    "owner": _field(
        "name of the worker that has its lease; empty: nobody",
        "advance claim confirm divert fail finish pause reap release renew stop",
    ),
    "claimed": _field("ms; when the worker that has claimed it had read it", "claim renew"),
    "until": _field("ms; the end of its stage's budget", "claim renew stop"),
    "attempts": _field("integer; failed attempts", "fail"),
    "deaths": _field("integer; workers that died under it", "reap"),
    "releases": _field("integer; times that it was given back", "fail release"),
    "commits": _field(
        "tokens that have committed, each as TOKEN@WORKER with a space; the newest 2000 bytes",
        "advance confirm fail finish reap release stop",
    ),
    "made": _field("the token that has advanced it last: that of its sandbox's label, while it is in RUN", "advance"),
    "logged": _field("integer; records in its log of turns", "log", LOG_GOES),
    "log:": _field("record of that place in its log of turns, as `prorl_mq.schema.turns` has it", "log", LOG_GOES),
    "saved": _field("the newest checkpoint of its sandbox, as the log's newest note of one says", "log", LOG_GOES),
    "saved_in": _field("name of the file that has that checkpoint; empty: `saved` has it", "log", LOG_GOES),
    "lent": _field("1: a fork names one of its checkpoints' files, so its worker removes none", "fork"),
    "progress": _field("integer; `deaths` when its newest record was logged", "log"),
    "at": _field("ms; its admission", "admit submit"),
    "deadline": _field("ms; its total deadline", "admit resume submit"),
    "line": _field(
        "its newest 64 events, a line each",
        "admit advance assign claim confirm divert fail finish log pause promote reap release renew resume stop submit",
        "moves to its group when the job ends",
    ),
    "carry": _field(
        "bytes that a stage hands on", "advance confirm fail finish reap stop", "emptied when the job ends"
    ),
    "trajectory": _field("key of its blob, or the name of its file", "advance"),
    "exported": _field("name of the file that has RUN's export; there is none where `carry` has it", "advance"),
    "bytes": _field(
        "integer; what waits for EVAL", "advance", "removed by fail where EVAL puts it aside, and where it is parked"
    ),
    "backend": _field("address that is reserved for it", "assign", "removed by the next commit, or reap"),
    "pause": _field("ms; the end of the pause that it is marked for, or in", "pause", "removed by resume"),
    "ends": _field("PauseEnd; what follows that end", "pause", "removed by resume"),
    "parked": _field("ms; when it was parked", "advance divert fail pause reap release", "removed by resume"),
    "ending": _field("Outcome that it was told to end with", "stop"),
    "told": _field("ms; when it was told to end", "stop"),
    "outcome": _field("Outcome", "confirm finish reap stop"),
}
GROUP: Final[dict[str, Field]] = {
    "digest": _field("hex; its body", "fork settle submit", "stays until ack"),
    "batch": _field("BatchRef that it belongs to now", "adopt draw fork submit", "removed by settle"),
    "n": _field("integer; samples", "fork submit", "removed by settle"),
    "next": _field("integer; jobs that there were", "admit fork submit", "removed by settle"),
    "wanted": _field("integer; samples that are no jobs yet", "admit fork settle submit withdraw", "removed by settle"),
    "open": _field(
        "integer; jobs that have not ended", "admit confirm finish fork reap stop submit", "removed by settle"
    ),
    "refills": _field("integer", "fork settle submit", "removed by settle"),
    "total_ms": _field("integer; of each job", "fork submit", "removed by settle"),
    "family": _field("its data source", "fork submit", "removed by settle"),
    "images": _field("names of the files with its task's images, between spaces", "fork submit", "removed by settle"),
    "at": _field("ms; its submission", "fork submit", "removed by settle"),
    "base": _field("integer; of its score in the backlog, where it is not 0", "fork submit", "removed by settle"),
    "ahead_us": _field("integer; its priority as waiting time, with a reservoir", "submit", "removed by settle"),
    "order": _field(
        "integer; its place among all draws; 0: it waits in a reservoir", "draw submit", "removed by settle"
    ),
    "version": _field("integer; the policy version announced at its draw", "draw", "removed by settle"),
    "carries": _field("integer; times that it was carried over", "adopt", "removed by settle"),
    "parked": _field("1: it cannot count yet", "settle", "removed by wake, adopt and withdraw"),
    "withdrawn": _field("Withdrawal", "withdraw", "removed by settle"),
    "changes": _field(
        "integer; its version: a verdict is applied to the one that it was made of",
        "admit adopt confirm draw finish reap settle stop submit wake withdraw",
        "removed by settle",
    ),
    "warm": _field("addresses of backends that hold its prompt, between spaces", "assign", "removed by settle"),
    "s:": _field("SampleRecord of the sample with that index", "confirm finish reap stop", "removed by settle"),
    "t:": _field("`line` of that sample", "confirm finish reap stop", "removed by settle"),
    "cursor": _field("id of its record in the result stream", "settle", "stays until ack"),
    "verdict": _field("Verdict", "settle", "stays until ack"),
    "bytes": _field("integer; what its result holds", "settle", "stays until ack"),
}
BATCH: Final[dict[str, Field]] = {
    "digest": _field("hex; its body", "fork submit"),
    "groups": _field("integer; of its own, as submitted", "fork submit"),
    "jobs": _field("integer; as submitted", "fork submit"),
    "at": _field("ms; its submission", "fork submit"),
    "g:": _field("digest of a group that was acknowledged, by its ref", "ack"),
    "closed": _field("integer; groups that have their record", "draw fork halt settle submit"),
    "v:": _field("integer; groups by Verdict, and `drawn` and `carried` by others", "draw halt settle"),
    "plan": _field("Plan; a DAPO batch alone has it, and what follows", "submit"),
    "phase": _field("Phase", "close halt submit"),
    "target": _field("integer; groups to accept", "submit"),
    "stored": _field("integer; groups of its own that are stored", "submit"),
    "joined": _field("integer; groups that came from other batches", "adopt draw"),
    "reason": _field("Reason of its end", "halt"),
    "report": _field("BatchReport", "close"),
    "cursor": _field("id of its report in the result stream", "close"),
    "drawn": _field("integer; groups drawn for it from reservoirs", "draw settle"),
    "carried_in": _field("integer; groups that it took over", "adopt settle"),
    "carried_out": _field("integer; groups that it left to the next batch", "halt settle"),
    **{name: _field("integer; a counter of its report", "settle") for name in COUNTERS if ":" in name},
}
