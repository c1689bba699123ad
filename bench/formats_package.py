"""Compares the package `renderers` with models' own chat templates, and with our formats, id by id.

    make formats-package

For each of its formats of which a package carries the model's template: conversations as it renders them whole beside
the template, and what it puts behind a completion (`bridge_to_next_turn`) beside our format, which the tests prove on
that template. Then the time of a bridge and of the import. It runs in an environment of its own.
"""

import collections
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tests.formats import models
from tests.formats.conversations import ANSWER, THOUGHT, TOOL_LIST, Talk, answering, asked, calling, results
from tests.formats.models import Known
from tests.formats.test_ids import AFTER, ONE_CALL, endings
from workers.agent.hermes import Message
from workers.agent.renderer import Renderer

SEEING: Final = (
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|image>", "<image|>", "<|audio>",
    "<audio|>", "<|video>", "<video|>", "<|video|>",
)  # fmt: skip
NAMES: Final[Mapping[str, str]] = {
    "Qwen3": "qwen3", "Qwen3.5": "qwen3.5", "Qwen3.6": "qwen3.6", "Qwen3.8": "qwen3.8", "Nemotron 3 Nano": "nemotron-3",
    "Nemotron 3 Super": "nemotron-3", "Nemotron 3 Ultra": "nemotron-3-ultra", "GLM-4.5": "glm-4.5", "Gemma 4": "gemma4",
    "DeepSeek-V3": "deepseek-v3", "Llama 3.2": "llama-3",
}  # fmt: skip
# Templates of a package that no row of our table has: its format, the file, and whose added tokens.
OTHERS: Final[Sequence[tuple[str, str, str]]] = (
    ("qwen3", "trl/qwen3_instruct_2507.jinja", "Qwen3"), ("qwen3-vl", "trl/qwen3_vl.jinja", "Qwen3"),
    ("qwen3.5", "trl/qwen3_5_nothink.jinja", "Qwen3.5"),
    ("nemotron-3.5", "trl/nemotron_3_5_lightning.jinja", "Nemotron 3 Nano"),
    ("deepseek-v3", "axolotl/deepseek_v3.jinja", "DeepSeek-V3"),
    ("deepseek-r1", "trl/deepseek_r1_distill.jinja", "DeepSeek-V3"), ("llama-3", "trl/llama3_1.jinja", "Llama 3.2"),
    ("llama-3", "trl/llama3.jinja", "Llama 3.2"),
)  # fmt: skip
SYSTEM, QUESTION = {"role": "system", "content": "You help."}, {"role": "user", "content": "How many?"}
Conversation = Sequence[dict[str, Any]]


def made(name: str, tokenizer: Any, options: Mapping[str, Any], **more: Any) -> Any:
    """The package's renderer of this name."""
    package = importlib.import_module("renderers")
    kind = type(package.config_from_name(name))
    given = {key: value for key, value in {**options, **more}.items() if key in kind.model_fields}
    return package.create_renderer(tokenizer, kind(**given))


def with_tokens(known: Known) -> Any:
    """The tokenizer of a model with the added tokens that the package looks for."""
    return models.tokenizer(msgspec.structs.replace(known, special=[*known.special, *SEEING]))


def conversations(known: Known) -> Iterator[tuple[str, Conversation, bool]]:
    """Kind, messages, and whether there are tools."""
    more = [{"role": "user", "content": "And now?"}]
    for thought in ("", THOUGHT):
        kind, answer = "with thoughts" if thought else "text", answering(ANSWER, thought)
        yield kind, [SYSTEM, QUESTION, answer, *more], False
        yield kind, [SYSTEM, QUESTION, answer], False
        if not known.has_tools:
            continue
        called = [SYSTEM, QUESTION, calling(known, 1, thought), *results(1)]
        yield "tools" if not thought else kind, called, True
        yield "tools" if not thought else kind, [*called, answer, *more], True
    yield "text", [QUESTION], False
    if known.has_tools:
        yield "parallel calls", [SYSTEM, QUESTION, calling(known, 2), *results(2)], True


def whole(package: Any, tokenizer: Any, known: Known, options: Mapping[str, Any]) -> dict[str, str]:
    """Of each kind, how many conversations have the template's ids."""
    same, all_of = collections.Counter[str](), collections.Counter[str]()
    tools = [tool.schema() for tool in TOOL_LIST]
    for kind, messages, has_tools in conversations(known):
        about = {"tools": tools if has_tools else None, "add_generation_prompt": messages[-1]["role"] != "assistant"}
        try:
            theirs = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **about, **options)
        except Exception:
            continue
        all_of[kind] += 1
        try:
            same[kind] += list(package.render_ids(messages, **about)) == list(theirs)
        except Exception:
            continue
    return {kind: f"{same[kind]}/{count}" for kind, count in all_of.items()}


def behind(package: Any, known: Known, ours: Renderer) -> dict[str, int]:
    """Bridges by how the turn ended: with our ids, with others, or none."""
    found = collections.Counter[str]()
    for after in AFTER:
        if after.startswith("parallel") and known.model in ONE_CALL:
            continue
        for ending, thought in endings(known, after):
            told = Talk(known, ours)
            tools = [tool.schema() for tool in told.tools]
            for turn, following in steps(known, after, ending, thought):
                prompt, words = list(told.ours), sampled(told, turn, following, ending)
                told.say(turn, following, ending)
                bridge = package.bridge_to_next_turn(prompt, words, following, tools=tools)
                how = ending if ending in {"clean", "cut", "other"} else "in a thought"
                ids = None if bridge is None else list(bridge.token_ids)
                verdict = "none" if ids is None else "same" if ids == told.ours else "others"
                found[f"{how}: {verdict}"] += 1
    return dict(sorted(found.items()))


def sampled(told: Talk, turn: dict[str, Any], following: Any, ending: str) -> list[int]:
    """The ids of a turn that ends so, as `Talk.say` takes them."""
    words, end = told._sampled(turn, following)  # noqa: SLF001
    match ending:
        case "clean":
            return [*words, end]
        case "other":
            return [*words, told._other(end)]  # noqa: SLF001
        case "cut":
            return words
    text = told.made.text(words)
    return told.made.ids(text[: text.rindex(ending) + len(ending)])


def steps(known: Known, after: str, ending: str, thought: str) -> Iterator[tuple[dict[str, Any], Any]]:
    if "results" in after:
        count = 2 if after.startswith("parallel") else 1
        yield calling(known, count, thought), results(count)
    if after.startswith("a question"):
        yield (answering("", thought) if ending == THOUGHT else answering(ANSWER, thought)), asked()


def milliseconds(act: Callable[[], Any]) -> float:
    def once() -> float:
        started = time.perf_counter()
        act()
        return 1000 * (time.perf_counter() - started)

    return statistics.median(once() for _ in range(15))


def speed() -> None:
    known = next(each for each in models.MODELS if each.model == "Qwen3")
    tokenizer, ours = with_tokens(known), models.renderer(known.name)
    package = made("qwen3", tokenizer, {}, thinking_retention="all")
    said, result = [*ours.ids("Yes."), ours.end_of_turn], [{"role": "tool", "content": "noted", "name": "think"}]
    for tokens in (600, 32_500, 130_000):
        prompt = package.render_ids([{"role": "user", "content": "x" * tokens}], add_generation_prompt=True)
        theirs = milliseconds(lambda: package.bridge_to_next_turn(prompt, said, result))  # noqa: B023
        here = milliseconds(lambda: ours.after(said, [Message(role="tool", content="noted")]))
        print(f"a result behind {tokens} ids: package {theirs:.2f} ms, our format {here:.2f} ms")


def main() -> None:
    started = time.process_time()
    importlib.import_module("transformers")
    between = time.process_time()
    importlib.import_module("renderers.client")
    print(f"import: transformers {between - started:.2f} s, renderers {time.process_time() - between:.2f} s of CPU")
    for known in models.MODELS:
        if known.model in NAMES:
            tokenizer = with_tokens(known)
            ours = Renderer(tokenizer, known.model, known.options or None)
            for retention in (None, "all"):
                package = made(NAMES[known.model], tokenizer, known.options, thinking_retention=retention)
                row = (whole(package, tokenizer, known, known.options), behind(package, known, ours))
                print(json.dumps([known.name, f"retention {retention}", *row], ensure_ascii=False))
    for name, file, like in OTHERS:
        known = next(each for each in models.MODELS if each.model == like)
        tokenizer = with_tokens(known)
        tokenizer.chat_template = (models.ROOT / ".state/chat-templates" / file).read_text()
        print(json.dumps([name, file, whole(made(name, tokenizer, known.options), tokenizer, known, known.options)]))
    speed()


if __name__ == "__main__":
    main()
