"""Routing rules on simulated backends: all figures of this folder are *simulated*."""
