"""Benchmarks: each prints a table and writes `bench/out/NAME.json` with its goals."""
