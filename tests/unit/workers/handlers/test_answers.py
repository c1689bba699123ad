"""The answer is found where models put it."""

import pytest

from workers.handlers.answers import boxed, final_answer, python_block


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


CODE = "def f():\n    return 1\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}```",
        f"```python3\n{CODE}```\nDone.",
        f"``` Python\n{CODE}``` \nDone.",
        f"```{{.python}}\n{CODE}```",
        f'```py title="a.py"\n{CODE}```',
        f"~~~python\n{CODE}~~~",
        f"````python\n{CODE}````",
        f"```python\n{CODE}```".replace("\n", "\r\n"),
        f"Run\n```bash\npip install x\n```\nand\n```python\n{CODE}```\nThat is all.",
        f"```python\n{CODE}```\nIt prints\n```\n1\n```",
        f"```python\n{CODE}```\nIt prints\n```text\n1\n```\nas it should.",
        f"Use ```x``` so:\n```python\n{CODE}```",
        f"Here: ```python\n{CODE}```",
        f"```\n{CODE}```",
        "1. So:\n   ```python\n   def f():\n       return 1\n   ```\n2. Done.",
        f"```python\n{CODE[:-1]}```",
    ],
)
def test_a_block_of_python_is_found_beside_other_blocks(text: str) -> None:
    assert python_block(text) == CODE


def test_fences_within_a_program_belong_to_it() -> None:
    program = "def f():\n    \"\"\"As\n    ```\n    f()\n    ```\n    \"\"\"\n    return '''```'''\n"
    assert python_block(f"```python\n{program}```") == program


@pytest.mark.parametrize(
    "piece", ["```", "``` ", "~~~", " ", "`", "\n```\n", "```python", "<answer>", "\\boxed{1},", "\\boxed5"]
)
def test_no_text_takes_long_to_search(piece: str) -> None:
    text = "```" + piece * (200_000 // len(piece)) + "x"
    assert [python_block(text), final_answer(text), boxed(text[-16_384:])] != []


def test_spaces_behind_a_fence_do_not_hold_up_the_worker() -> None:
    assert python_block("```" + " " * 1_000_000 + "x") is None
