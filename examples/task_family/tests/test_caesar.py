"""Only the plain text earns the reward; a near miss shows in the parts."""

from types import SimpleNamespace

import pytest
from caesar_tasks import Caesar


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "reward", "letters"), [("The answer is Hello", 1.0, 1.0), ("hallo", 0.0, 0.8)])
async def test_only_the_plain_text_is_rewarded(answer: str, reward: float, letters: float) -> None:
    context = SimpleNamespace(export=answer, sealed={"plain": "hello"})
    score = await Caesar().eval(context)  # type: ignore[arg-type]
    assert (score.reward, dict(score.parts)) == (reward, {"letters": letters})
