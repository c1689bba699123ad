"""The execution server that runs inside a sandbox.

Only the standard library, only syntax and calls of Python 3.8, and no import from outside this package: `bundle.py`
joins the modules to one file, which is all that an image gets. `main.py` is the entry.
"""
