"""Tests of the benchmarks' own arithmetic."""
