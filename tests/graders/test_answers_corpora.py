"""No right answer of the corpora is refused, and no wrong one accepted."""

import pytest

from tests.graders import math_corpus, stem_corpus
from tests.graders.grading import math_grade, stem_grade, told
from tests.graders.measure import measured

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]
SEED = 16


async def test_mathematics_by_hand() -> None:
    found = await measured("math", "by hand", math_corpus.by_hand(), math_grade())
    assert (told(found.refused), told(found.accepted)) == ([], [])
    assert min(found.right, found.wrong) >= 60


async def test_mathematics_generated() -> None:
    found = await measured("math", "generated", math_corpus.generated(SEED, 240), math_grade())
    assert (told(found.refused), told(found.accepted)) == ([], [])


async def test_science_by_hand() -> None:
    found = await measured("stem", "by hand", stem_corpus.by_hand(), stem_grade)
    assert (told(found.refused), told(found.accepted)) == ([], [])
    assert min(found.right, found.wrong) >= 50


async def test_science_generated() -> None:
    found = await measured("stem", "generated", stem_corpus.generated(SEED, 1000), stem_grade)
    assert (told(found.refused), told(found.accepted)) == ([], [])
    assert found.undecided == 0
