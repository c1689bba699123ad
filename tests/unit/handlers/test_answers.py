"""The answer is found where models put it."""

import pytest

from workers.handlers.answers import final_answer, python_block


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("<answer>1</answer> no, <answer> 2\n3 </answer>", "2\n3"),
        (r"so \boxed{1} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{7} and then \boxed{8", "7"),
        (r"so \fbox{5}.", "5"),
        (r"so \boxed 5.", "5"),
        (r"so $\boxed -12$.", "-12"),
        (r"so $\boxed x$.", "x"),
        ("The answer is 42.", "42"),
        ("The final answer is: **-3**.", "-3"),
        ("Answer: 3.5", "3.5"),
        ("  a\nb  ", "a\nb"),
        ("", ""),
    ],
)
def test_an_answer_is_found(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_the_last_block_of_python_counts_even_if_it_was_cut() -> None:
    assert python_block("```python\na\n```\nbetter:\n```py\nb\n") == "b\n"
    assert python_block("no code") is None
