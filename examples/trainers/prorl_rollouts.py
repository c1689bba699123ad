"""verifiers and prime-rl find a taskset by the name of a module: this one is `prorl-rollouts`.

[env]
taskset = {id = "prorl-rollouts", path = "tasks.jsonl"}
url = "http://127.0.0.1:8080"
"""

from prorl_mq.bridges.verifiers import ProrlEnv, ProrlTaskset

__all__ = ["ProrlEnv", "ProrlTaskset"]
