"""Evaluation of a policy on suites of tasks: what a suite says, statistics of its samples, and reports. Pure."""
