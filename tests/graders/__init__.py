"""How right the graders are: corpora of right and wrong answers, rates of error, and hostile texts for every family.

`python -m tests.graders` measures everything and writes `docs/reference/graders.md`; the tests here are its short form.
"""
