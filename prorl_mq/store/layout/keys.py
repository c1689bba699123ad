"""Every Redis key, who owns it and when it ends.

All keys of a namespace share one hash tag, so that they lie in one slot of a Redis Cluster. The kind comes first and
the tenant second, so that an ACL pattern can name both. `fields.py` says what lies in batch:B, group:G and job:J.

| key | type | holds | ends |
|---|---|---|---|
| stage:S, stage:run@NODE | stream | queued jobs of a stage or lane | permanent; a lane goes with its node |
| stage:S!, stage:run!@NODE | stream | begun rollouts that have lost their place, in front of those | as those |
| stage:S#FAMILY, stage:run@NODE#FAMILY | stream | queued jobs whose task family a worker lacks | retired when empty |
| epoch | hash | its number and server, tokens given, clock's state, payload files' mark, replicas | permanent |
| mark, mark:T | string | written before WAIT, by the service or a trainer | TTL |
| leases, delayed, deadlines | zset | job → milliseconds | members leave with their job; permanent |
| paused, paused:runs | zset | paused job, run → when its pause ends | members leave by resume, or in time; permanent |
| due | stream | groups whose verdict is due | entries leave by settle; permanent |
| changed:admit | zset | runs whose backlog has got something since admission looked | a look takes them; permanent |
| offer | string | what may begin with its submission, by who admits and while nothing waits | TTL |
| cancels, events | stream | cancel messages; state changes | trimmed by age; capped; permanent |
| workers, worker:NAME | zset, hash | living workers | members swept; TTL |
| runs, run:R | zset, hash | runs; a run's counters | swept when it is idle and holds nothing |
| settings:runs, settings:tenants | hash | weights and quotas | swept with the run; an operator's; permanent |
| in_flight | hash | run → jobs admitted and not ended | fields go at zero; permanent |
| counters | hash | what has happened so far, for metrics | permanent |
| unacked | hash | run → groups admitted and not acknowledged | fields go at zero; permanent |
| backlog:R | zset | groups not yet admitted, as `order.py` says | empty → gone |
| groups:R, groups:B | set | a run's, a batch's groups not yet published | empty → gone |
| reservoir:B, reservoir:R | zset | a batch's, a run's groups that wait to be drawn, in order | empty → gone |
| drawn:B | zset | groups of a batch in play, by the order of their draw | empty → gone |
| parked:B | zset | those of them that were kept and cannot count yet, in the same order | empty → gone |
| carried:R | zset | groups that a full batch left to the run's next one, in the same order | empty → gone |
| carrying | zset | runs with a carry-over → when it expires | members leave with it; permanent |
| dapo | zset | DAPO batches that are not closed | members leave by close; permanent |
| changed:draw | zset | DAPO batches that have changed since the draw looked | a look takes them; permanent |
| placed:R | string | by the router of several cells: the cell that holds the run | TTL |
| away:R | hash | cell that the run is in, or comes from; what it held of shared keys | TTL when its keys are gone |
| arrivals | hash | run → the departure by which it has come | fields go when its old cell has removed it; permanent |
| departed:R | stream | results of a run on its way to or from another cell | renamed by arrive; unlinked by vacate |
| leaving | zset | run → until when nothing of it is admitted, since it is to leave | members leave in time; permanent |
| batches:R | zset | a run's newest batches, by when they came | capped; swept with the run |
| batch:B | hash | digest, counters, a closed batch's report | TTL when it has closed and none of its groups is open |
| group:G | hash | counters, samples' records | unlinked by ack |
| job:J | hash | one job, with its last events | TTL by settle |
| open:G, sealed:G | string | what RUN may see; what EVAL alone may see | unlinked by settle |
| fork:G | hash | turns that a forked group begins with, and the checkpoint behind some of them | unlinked by settle |
| blob:J:TOKEN:KIND | string | trajectory, carried data | TTL until committed; unlinked by ack, or shelve |
| results:R | stream | closed groups, reports of batches, answers | entries leave by ack; empty ones are swept |
| archive:R | stream | acknowledged groups that wait for the archive | entries leave by shelve; empty → gone |
| archiving | zset | runs with such groups → since when | members leave by shelve; permanent |
| archive_state | hash | whether there is an archive, what waits for it, what has become of the others | permanent |
| answers:R | zset | entries of results:R that answer messages → ms | members leave with them, after an hour at most |
| intake:R | stream | messages of a trainer without HTTP | entries leave when taken; swept |
| cancellable:R | set | the run and its open batches: a trainer moves them to to_cancel:T | swept with the run |
| to_cancel:T | set | batches and runs whose end a trainer wants | members leave when they are cancelled |
| pool:P, pool:P:info | zset, hash | backend → jobs in flight; backend → description | permanent |
| seats:P | hash | ledger of a pool that is short of room: attempt → what its session needs and does | TTL |
| policy:P, policy:P:update | hash | policy version last announced; how far backends are with its weights | permanent |
| lanes, intakes | set | nodes that have a lane; runs that have an intake | swept |
| lanes:families | set | lanes of task families, as their streams are called after `stage:` | leave with their stream |
| intakes:T | set | names of the tenant's runs that have an intake: the tenant's Redis user writes them | permanent |
| pools | set | names of the pools | permanent |
| breakers | hash | image or task family that fails, or is in quarantine → why | fields go at a success or in time |
| images | hash | KEY NODE → what a node has of an image, or why not, and when that was noted | a week after the last |
| images:jobs | hash | job → KEY of the image that it named last | fields go when their job is over; permanent |
| bytes:eval | integer | bytes of what waits for EVAL | permanent |
| duty:D | string | who runs a maintenance loop; as `image:STORAGE:DIGEST`, who fetches a blob | TTL |
| prorl | set | clients of the ProRL routes whose server is started | members leave by stop; permanent |
| schemas | hash | data source → its handler's schema | permanent |
| families | hash | digest, as workers name it → the data sources that they have | permanent |
"""

from functools import lru_cache

from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef, Token
from prorl_mq.schema.items import Lane
from prorl_mq.schema.messages import Stage

GROUP = "workers"  # the consumer group of every stage stream


@lru_cache(4096)
def lane_name(lane: Lane) -> str:
    """STAGE, STAGE@NODE, STAGE#FAMILY or STAGE@NODE#FAMILY; with STAGE! in the place of STAGE the lane in front."""
    place = f"{lane.stage}{'!' if lane.front else ''}{f'@{lane.node}' if lane.node else ''}"
    return f"{place}#{lane.family}" if lane.family else place


@lru_cache(4096)
def named_lane(name: str) -> Lane:
    """The reverse of `lane_name`. A family's name may hold any sign, a node's no `#`."""
    place, _, family = name.partition("#")
    stage, _, node = place.partition("@")
    return Lane(Stage(stage.removesuffix("!")), node or None, family or None, stage.endswith("!"))


def lanes_of(node: str) -> list[Lane]:
    """The lanes of a node with RUN workers."""
    return [Lane(Stage.RUN, node), Lane(Stage.RUN, node).ahead]


class Keys:
    """Builds the keys of one namespace."""

    def __init__(self, namespace: str = "prorl") -> None:
        prefix = f"{{{namespace}}}:"
        self.namespace = namespace
        self.prefix = prefix
        self.epoch = prefix + "epoch"
        self.mark = prefix + "mark"
        self.leases = prefix + "leases"
        self.delayed = prefix + "delayed"
        self.deadlines = prefix + "deadlines"
        self.paused = prefix + "paused"
        self.paused_runs = prefix + "paused:runs"
        self.due = prefix + "due"
        self.admit_bell = prefix + "changed:admit"
        self.offer = prefix + "offer"
        self.leaving = prefix + "leaving"
        self.arrivals = prefix + "arrivals"
        self.draw_bell = prefix + "changed:draw"
        self.dapo = prefix + "dapo"
        self.carrying = prefix + "carrying"
        self.cancels = prefix + "cancels"
        self.events = prefix + "events"
        self.workers = prefix + "workers"
        self.runs = prefix + "runs"
        self.run_settings = prefix + "settings:runs"
        self.tenant_settings = prefix + "settings:tenants"
        self.in_flight = prefix + "in_flight"
        self.counters = prefix + "counters"
        self.unacked = prefix + "unacked"
        self.schemas = prefix + "schemas"
        self.pools = prefix + "pools"
        self.breakers = prefix + "breakers"
        self.images = prefix + "images"
        self.image_jobs = prefix + "images:jobs"
        self.lanes = prefix + "lanes"
        self.family_lanes = prefix + "lanes:families"
        self.families = prefix + "families"
        self.intakes = prefix + "intakes"
        self.prorl = prefix + "prorl"
        self.eval_bytes = prefix + "bytes:eval"
        self.archiving = prefix + "archiving"
        self.archive_state = prefix + "archive_state"

    @property
    def parking(self) -> list[str]:
        """Keys of a script that parks jobs, in front of its own ones (`park.lua`)."""
        return [self.paused, self.deadlines, self.eval_bytes]

    def mark_of(self, tenant: str) -> str:
        return f"{self.prefix}mark:{tenant}"

    def stage(self, stage: Stage, node: str | None = None, family: str | None = None, front: bool = False) -> str:
        return f"{self.prefix}stage:{lane_name(Lane(stage, node, family, front))}"

    def lane(self, stream: str) -> Lane:
        """The reverse of `stage`."""
        return named_lane(stream.removeprefix(f"{self.prefix}stage:"))

    def worker(self, name: str) -> str:
        return f"{self.prefix}worker:{name}"

    def run(self, run: RunRef) -> str:
        return f"{self.prefix}run:{run}"

    def backlog(self, run: RunRef) -> str:
        return f"{self.prefix}backlog:{run}"

    def reservoir(self, owner: BatchRef | RunRef) -> str:
        return f"{self.prefix}reservoir:{owner}"

    def drawn(self, batch: BatchRef) -> str:
        return f"{self.prefix}drawn:{batch}"

    def parked(self, batch: BatchRef) -> str:
        return f"{self.prefix}parked:{batch}"

    def carried(self, run: RunRef) -> str:
        return f"{self.prefix}carried:{run}"

    def open_groups(self, owner: BatchRef | RunRef) -> str:
        return f"{self.prefix}groups:{owner}"

    def placed(self, run: RunRef) -> str:
        return f"{self.prefix}placed:{run}"

    def away(self, run: RunRef) -> str:
        return f"{self.prefix}away:{run}"

    def departed(self, run: RunRef) -> str:
        return f"{self.prefix}departed:{run}"

    def batches(self, run: RunRef) -> str:
        return f"{self.prefix}batches:{run}"

    def batch(self, batch: BatchRef) -> str:
        return f"{self.prefix}batch:{batch}"

    def group(self, group: GroupRef) -> str:
        return f"{self.prefix}group:{group}"

    def job(self, job: JobRef) -> str:
        return f"{self.prefix}job:{job}"

    def open(self, group: GroupRef) -> str:
        return f"{self.prefix}open:{group}"

    def sealed(self, group: GroupRef) -> str:
        return f"{self.prefix}sealed:{group}"

    def fork(self, group: GroupRef) -> str:
        return f"{self.prefix}fork:{group}"

    def blob(self, job: JobRef, token: Token, kind: str) -> str:
        return f"{self.prefix}blob:{job}:{token}:{kind}"

    def blobs(self, run: RunRef) -> str:
        """Prefix of the keys of a run's blobs."""
        return f"{self.prefix}blob:{run}:"

    def results(self, run: RunRef) -> str:
        return f"{self.prefix}results:{run}"

    def archive(self, run: RunRef) -> str:
        return f"{self.prefix}archive:{run}"

    def intake(self, run: RunRef) -> str:
        return f"{self.prefix}intake:{run}"

    def answers(self, run: RunRef) -> str:
        return f"{self.prefix}answers:{run}"

    def cancellable(self, run: RunRef) -> str:
        return f"{self.prefix}cancellable:{run}"

    def to_cancel(self, tenant: str) -> str:
        return f"{self.prefix}to_cancel:{tenant}"

    def intakes_of(self, tenant: str) -> str:
        return f"{self.prefix}intakes:{tenant}"

    def pool(self, pool: str) -> str:
        return f"{self.prefix}pool:{pool}"

    def pool_info(self, pool: str) -> str:
        return f"{self.prefix}pool:{pool}:info"

    def seats(self, pool: str) -> str:
        return f"{self.prefix}seats:{pool}"

    def policy(self, pool: str) -> str:
        return f"{self.prefix}policy:{pool}"

    def policy_update(self, pool: str) -> str:
        return f"{self.prefix}policy:{pool}:update"

    def duty(self, duty: str) -> str:
        return f"{self.prefix}duty:{duty}"
