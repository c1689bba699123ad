"""Parameters of the chat APIs: what the gateway does with each. `docs/reference/gateway.md` is made from these tables.

    python -m workers.external.parameters

A name that is in no table is refused, with the nearest one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from prorl_mq.schema.task_schema import nearest
from workers.external.history import BadRequest

_JOBS: Final = "the job's sampling is used"
_NOTHING: Final = "means nothing here"


class Rule(msgspec.Struct, frozen=True):
    """The treatment of a parameter. `only`: its values that are taken; others are refused, as if `refused`."""

    does: str  # honoured, no effect, refused
    note: str
    only: Sequence[Any] | None = None


def _honoured(note: str, *only: Any) -> Rule:
    return Rule("honoured", note, only or None)


def _no_effect(note: str = _NOTHING, *only: Any) -> Rule:
    return Rule("no effect", note, only or None)


def _refused(note: str, *harmless: Any) -> Rule:
    return Rule("refused", note, (None, *harmless))


_SAMPLING: Final = {
    name: _no_effect(_JOBS) for name in ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")
}
_OPENAI: Final[Mapping[str, Rule]] = {
    "model": _honoured(
        "any name but those of other pools is the policy; `policy-small` is, too, and is not trained. The answer tells "
        "which it was"
    ),
    "stream": _honoured("the events of an answer; it opens when the answer is there, or after ten seconds"),
    "stream_options": _honoured("`include_usage`"),
    **_SAMPLING,
    "user": _no_effect(),
    "metadata": _no_effect(),
    "store": _no_effect("nothing is stored", None, False),
    "service_tier": _no_effect(),
    "safety_identifier": _no_effect(),
    "prompt_cache_key": _no_effect("prefixes are cached by their ids"),
    "prompt_cache_retention": _no_effect("prefixes are cached by their ids"),
}
_CHOICE: Final = "`auto`; `none` leaves the tools out of the prompt. Calls cannot be forced"
_LENGTH: Final = "may ask for less than the job's `max_tokens_per_turn`"

_NEWER: Final[Mapping[str, Rule]] = {  # of chat and responses
    "prompt_cache_options": _no_effect("prefixes are cached by their ids"),
    "moderation": _refused("nothing is moderated"),
}

CHAT: Final[Mapping[str, Rule]] = {
    **_OPENAI,
    **_NEWER,
    "messages": _honoured("text, images as data: URLs; roles system, developer, user, assistant, tool, function"),
    "tools": _honoured("functions; their schemas go into the prompt"),
    "tool_choice": _honoured(_CHOICE, None, "auto", "none"),
    "parallel_tool_calls": _no_effect("the policy calls as many as it likes"),
    "max_tokens": _honoured(_LENGTH),
    "max_completion_tokens": _honoured(_LENGTH),
    "stop": _honoured("the completion is cut behind the text, in the record too"),
    "logprobs": _honoured("of the sampled tokens"),
    "top_logprobs": _refused("only the sampled tokens are known", 0),
    "top_k": _no_effect(_JOBS),
    "min_p": _no_effect(_JOBS),
    "repetition_penalty": _no_effect(_JOBS),
    "n": _refused("n must be 1: each request is one completion", 1),
    "response_format": _refused("the policy is not constrained", {"type": "text"}),
    "reasoning_effort": _no_effect("the chat template's options are the worker's"),
    "verbosity": _no_effect(),
    "modalities": _refused("text alone is answered", ["text"]),
    "logit_bias": _refused("the policy is not steered", {}),
    "audio": _refused("text alone is answered"),
    "prediction": _no_effect(),
    "web_search_options": _refused("there is no network"),
    "functions": _refused("send `tools`", []),
    "function_call": _refused("send `tool_choice`", "none", "auto"),
}

MESSAGES: Final[Mapping[str, Rule]] = {
    "model": _OPENAI["model"],
    "messages": _honoured("text, images in base64, tool uses and results; role `system` is taken anywhere"),
    "system": _honoured("text, or blocks; a billing header among them is left out"),
    "max_tokens": _honoured(_LENGTH),
    "stream": _OPENAI["stream"],
    "tools": _honoured("with an `input_schema`; they go into the prompt"),
    "tool_choice": _honoured(_CHOICE),
    "stop_sequences": _honoured("the completion is cut behind the text, in the record too"),
    "thinking": _honoured("thoughts are shown, signed with the completion's id, unless it is `disabled`"),
    "temperature": _no_effect(_JOBS),
    "top_p": _no_effect(_JOBS),
    "top_k": _no_effect(_JOBS),
    "metadata": _no_effect(),
    "betas": _no_effect(),
    "cache_control": _no_effect("prefixes are cached by their ids"),
    "context_management": _no_effect("thoughts are kept"),
    "output_config": _no_effect(),
    "service_tier": _no_effect(),
    "inference_geo": _no_effect(),
    "speed": _no_effect(),
    "diagnostics": _no_effect(),
    "user_profile_id": _no_effect(),
    "workspace_id": _no_effect(),
    "thread": _refused("nothing is stored: send all messages"),
    "compaction": _refused("histories are the client's"),
    "fallbacks": _refused("there is one policy", []),
    "fallback_credit_token": _refused("nothing is billed"),
    "billing_policy": _refused("nothing is billed"),
    "container": _refused("there are no containers"),
    "mcp_servers": _refused("tools are the harness's to run", []),
    "output_format": _refused("the policy is not constrained"),
}

COMPLETIONS: Final[Mapping[str, Rule]] = {
    **{name: rule for name, rule in _OPENAI.items() if name not in {"metadata", "store"}},
    "prompt": _honoured("one text, or one list of ids; it is continued as it is, without the chat template"),
    "max_tokens": _honoured(_LENGTH),
    "stop": _honoured("the completion is cut behind the text, in the record too"),
    "logprobs": _honoured("of the sampled tokens; of others, none", None, 0, 1),
    "top_k": _no_effect(_JOBS),
    "min_p": _no_effect(_JOBS),
    "repetition_penalty": _no_effect(_JOBS),
    "n": _refused("n must be 1: each request is one completion", 1),
    "best_of": _refused("each request is one completion", 1),
    "echo": _refused("prompts are not repeated", False),
    "suffix": _refused("nothing is inserted", ""),
    "logit_bias": _refused("the policy is not steered", {}),
}

RESPONSES: Final[Mapping[str, Rule]] = {
    **_OPENAI,
    **_NEWER,
    "input": _honoured("text, or items: messages, images, reasoning, calls of functions and custom tools, and outputs"),
    "instructions": _honoured("stand before the input as the system's"),
    "tools": _honoured(
        "functions, custom tools and namespaces of functions; others, which a service would run, are left out"
    ),
    "tool_choice": _honoured(_CHOICE, None, "auto", "none"),
    "parallel_tool_calls": _no_effect("the policy calls as many as it likes"),
    "max_output_tokens": _honoured(_LENGTH),
    "include": _honoured("`reasoning.encrypted_content`, which holds the completion's id; others have no effect"),
    "reasoning": _no_effect("the chat template's options are the worker's; thoughts are always shown"),
    "text": _honoured("`format` may be `text` alone; the rest has no effect"),
    "client_metadata": _no_effect(),
    "truncation": _refused("a full context ends the rollout", "disabled"),
    "top_logprobs": _refused("only the sampled tokens are known", 0),
    "max_tool_calls": _no_effect(),
    "previous_response_id": _refused("nothing is stored: send all items"),
    "conversation": _refused("nothing is stored: send all items"),
    "background": _refused("answers are not kept", False),
    "prompt": _refused("there are no stored prompts"),
    "context_management": _refused("histories are the client's"),
}

ROUTES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
    "/v1/completions": COMPLETIONS,
}


def judged(given: Mapping[str, msgspec.Raw], rules: Mapping[str, Rule]) -> None:
    """Raises `BadRequest` that names the parameter which cannot be had."""
    for name, raw in given.items():
        rule = rules.get(name)
        if rule is None:
            raise BadRequest(f"there is no parameter {name!r} here ({nearest(name, list(rules))}): leave it out")
        if rule.only is None:
            continue
        value = msgspec.json.decode(raw)
        if not any(type(value) is type(each) and value == each for each in rule.only):
            raise BadRequest(f"{name} {msgspec.json.encode(value).decode()[:200]} is refused: {plain(rule.note)}")


def plain(note: str) -> str:
    return note.replace("`", "")


def page() -> str:
    """The tables of the reference."""
    lines: list[str] = []
    for route, rules in ROUTES.items():
        lines += [f"## {route}", "", "| parameter | | |", "|---|---|---|"]
        for name, rule in sorted(rules.items()):
            lines.append(f"| `{name}` | {rule.does} | {rule.note}{_but(rule)} |")
        lines.append("")
    return "\n".join(lines)


def _but(rule: Rule) -> str:
    values = [msgspec.json.encode(each).decode() for each in rule.only or () if each is not None]
    return f" (taken: {', '.join(f'`{each}`' for each in values)})" if values else ""


if __name__ == "__main__":
    print(page())
