"""Why jobs of a stage wait though its own workers live."""

from prorl_mq.schema.items import Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store.families import Abilities
from prorl_mq.store.workers import WorkerStatus


def worker(stage: Stage, node: str, *, slots: int = 4, sandbox: str = "process") -> WorkerStatus:
    name = f"{stage}-{node}-{sandbox}"
    return WorkerStatus(name=name, stage=stage, node=node, slots=slots, busy=0, pid=1, started_ms=0, sandbox=sandbox)


def why(*workers: WorkerStatus) -> str:
    return Abilities(workers, {}).why_waits(Lane(Stage.INIT))


def test_init_waits_for_a_run_worker_where_none_lives_on_its_node() -> None:
    init, elsewhere = worker(Stage.INIT, "n1"), worker(Stage.RUN, "n2")
    said = "waits: no living run worker on n1 would take it: start prorl-worker --stage run there"
    assert [why(init), why(init, elsewhere), why(init, worker(Stage.RUN, "n1", slots=0))] == [said] * 3


def test_init_does_not_wait_where_run_can_follow_or_no_sandbox_is_made() -> None:
    init = worker(Stage.INIT, "n1")
    assert why(init, worker(Stage.RUN, "n1")) == ""
    assert why(init, worker(Stage.INIT, "n2"), worker(Stage.RUN, "n2")) == ""
    assert why(worker(Stage.INIT, "n1", sandbox="none")) == ""
    assert why(worker(Stage.RUN, "n1")) == ""
