"""IFEval's own checks of instructions, in the process of `workers.handlers.forks`.

Sentences are cut by Punkt's English model, which NLTK would fetch from the network, and languages are told apart by the
same seed each time. An instruction counts if its check passes for the answer as it is (IFEval's strict form).

Two rules differ, for a reward must be no chance and no gift: IFEval draws an argument that it does not like (a `letter`
that is `#`, as rows of its own have it, a negative number) at random, and a text of digits is in every language.
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.handlers.blame import ScorerReply, fault_of

_WORDS = frozenset({"keywords", "forbidden_words"})  # a text in their place would be taken for its letters


class Instructed(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the instructions it was to follow. `arguments`: one object each."""

    answer: str
    prompt: str
    names: Sequence[str]
    arguments: Sequence[Mapping[str, Any]]


class Followed(ScorerReply, frozen=True, kw_only=True):
    """The instructions that were followed, one truth value each; or what is wrong with the row."""

    followed: Sequence[bool] = ()
    bad_row: str | None = None


def load() -> None:
    """Takes some seconds."""
    import langdetect
    import nltk
    import punkt
    from if_verifiable.ifeval import instructions, instructions_util
    from langdetect.detector_factory import init_factory

    cutter = punkt.PunktSentenceTokenizer(punkt.load_model("english"))
    instructions_util._get_sentence_tokenizer = lambda: cutter  # noqa: SLF001
    nltk.tokenize.sent_tokenize = lambda text, language="english": cutter.tokenize(text)  # noqa: ARG005
    langdetect.DetectorFactory.seed = 0
    init_factory()  # reads the profiles of languages
    detect = langdetect.detect

    def language_of(text: str) -> str:
        try:
            return str(detect(text))
        except langdetect.LangDetectException:
            return ""

    langdetect.detect = language_of
    instructions.random = instructions_util.random = _NoChance()


class _NoChance:
    """In place of `random`."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("IFEval would draw another value at random")


def reply_to(line: bytes) -> bytes:
    """The instructions that were followed, or what a check raised."""
    try:
        return msgspec.json.encode(check(msgspec.json.decode(line, type=Instructed)))
    except Exception as error:  # checks raise whatever reading a strange answer leads to
        return msgspec.json.encode(Followed(fault=fault_of(error)))


def check(request: Instructed) -> Followed:
    """Raises what a check raises over the answer."""
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT

    found: list[bool] = []
    for name, given in zip(request.names, request.arguments, strict=True):
        if name not in INSTRUCTION_DICT:
            return Followed(bad_row=f"IFEval has no instruction {name!r}; it has {', '.join(sorted(INSTRUCTION_DICT))}")
        checker = INSTRUCTION_DICT[name](name)
        if reason := _built(checker, given, request.prompt):
            return Followed(bad_row=f"the instruction {name!r} does not take {dict(given)}: {reason}")
        found.append(bool(request.answer.strip() and checker.check_following(request.answer)))
    return Followed(followed=found)


def _built(checker: Any, given: Mapping[str, Any], prompt: str) -> str | None:
    """Gives a check its arguments; what is wrong with them. IFEval draws one that is missing at random: here it is."""
    arguments = {key: _whole(value) for key, value in given.items() if value is not None}
    wanted = set(checker.get_instruction_args_keys())
    if "prompt_to_repeat" in wanted:
        arguments.setdefault("prompt_to_repeat", prompt)
    arguments = {key: value for key, value in arguments.items() if key in wanted}
    if missing := sorted(wanted - arguments.keys()):
        return f"it lacks {', '.join(missing)}"
    for key in _WORDS & arguments.keys():
        words = arguments[key]
        if not isinstance(words, list) or not all(isinstance(each, str) and each.strip() for each in words):
            return f"{key} must be a list of words"
    letter = str(arguments.get("letter", "")).lower()
    literal = len(letter) == 1 and letter not in string.ascii_lowercase
    try:
        checker.build_description(**{**arguments, **({"letter": "a"} if literal else {})})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if literal:
        checker._letter = letter  # noqa: SLF001
    return None


def _whole(value: Any) -> Any:
    """Columns of numbers with gaps hold 2.0 for 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
