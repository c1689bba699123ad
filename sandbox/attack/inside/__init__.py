"""The attacks' programs, joined to one file that needs nothing but Python 3.8: `attack.py NAME FACTS`.

Each attack is a function that takes the facts (JSON, about what is to be found) and returns what it has achieved, in
words. It raises an `OSError` with the kernel's refusal, or `Contained`.
"""
