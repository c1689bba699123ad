"""VeRL-Tool: verl's bridge on its own copy of verl's agent loops.

    - {name: prorl, _target_: prorl_mq.bridges.verl_tool.ProrlAgentLoop, url: "http://127.0.0.1:8080"}

Written from its source of June 2026; it is in no package registry. Its worker takes one sequence a sample: the one
that is drawn by its share of the sample's tokens, for a loss that averages each sequence first.
"""

from typing import Any

from prorl_mq.bridges.theirs import imported
from prorl_mq.bridges.verl import agent_loop

MODULE = "verl_tool.agent_loop.agent_loop"

ProrlAgentLoop: type  # made when it is first asked for


def __getattr__(name: str) -> Any:
    if name != "ProrlAgentLoop":
        raise AttributeError(name)
    made = agent_loop(imported(MODULE, "verl-tool (from its repository)"), __name__, one_row=True)
    globals()[name] = made
    return made
