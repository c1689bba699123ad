"""Starts mini-swe-agent. Its packages are on no path but its own: what the agent runs must find the repository's."""

import runpy
import sys

sys.path.insert(0, "/opt/prorl-agent/packages")
sys.argv[0] = "mini"
runpy.run_module("minisweagent.run.mini", run_name="__main__")
