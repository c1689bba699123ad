"""Bridges: rollouts of the service in the forms, rows and limits of trainers, one module a trainer.

A bridge imports its trainer when it is used, and says what to install where that is not there. Its docstring tells the
versions it was tested with, how several rows of a sample reach the loss, and what becomes of a sample that was lost.
"""
