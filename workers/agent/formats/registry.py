"""The model formats that this process knows, and the choice of one for a model."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from prorl_mq.schema.task_schema import nearest
from workers.agent.formats.by_template import TemplateFormat
from workers.agent.formats.classic import ChatMl, Generic, Llama3
from workers.agent.formats.command_a import CommandA
from workers.agent.formats.deepseek import DeepSeekV3
from workers.agent.formats.gemma import Gemma4
from workers.agent.formats.glm import Glm
from workers.agent.formats.harmony import Harmony
from workers.agent.formats.interface import Format, Model, ModelFormat
from workers.agent.formats.lfm import Lfm2
from workers.agent.formats.llama4 import Llama4
from workers.agent.formats.mistral import MistralTekken
from workers.agent.formats.phi import Phi3
from workers.agent.formats.qwen_xml import QwenXml
from workers.agent.template import NoTools, TemplateError

GROUP: Final = "prorl_mq.formats"
MEMBERS: Final = ("name", "stop_ids", "prompt", "delta", "parse")  # of the protocol
BUILT_IN: Final[Sequence[type[TemplateFormat]]] = (
    QwenXml, Glm, Gemma4, Harmony, Lfm2, Llama4, MistralTekken, DeepSeekV3, CommandA, Phi3, ChatMl, Llama3, Generic,
)  # fmt: skip


@cache
def known() -> Mapping[str, ModelFormat]:
    """Formats by name: those of other packages first, in the order in which they are asked. Ours need no metadata.

    Raises `TemplateError` for one that cannot be loaded, or has a name that is taken.
    """
    found: dict[str, ModelFormat] = {}
    for point in entry_points(group=GROUP):
        if point.name in found or any(point.name == ours.name for ours in BUILT_IN):
            raise TemplateError(
                f"two model formats are named {point.name!r}: {point.value} is one; rename or remove it"
            )
        found[point.name] = _loaded(point)
    ours: dict[str, ModelFormat] = {each.name: each for each in BUILT_IN}
    return {**found, **ours}


def chosen(model: Model, name: str | None = None) -> Format:
    """The named format of a model, or the first that fits it. Raises `TemplateError`."""
    formats = known()
    if name is not None and name not in formats:
        raise TemplateError(f"no model format is named {name!r}: {nearest(name, formats)}")
    name = name or fitting(model)
    try:
        return _made(model, name)
    except TemplateError as error:
        raise TemplateError(f"{error}{_instead(model, name, tools=False)}") from error


def fitting(model: Model) -> str:
    """The format that a model's template shows; else that of its `model_type`, with its vocabulary; else `generic`."""
    *special, (generic, _) = known().items()
    shown = (name for name, kind in special if _fits(model, name, kind))
    by_type = ((name, kind) for name, kind in special if model.model_type in getattr(kind, "model_types", ()))
    typed = (name for name, kind in by_type if any(map(model.has_token, getattr(kind, "ends", ()))))
    return next(shown, None) or next(typed, generic)


def no_tools(model: Model, name: str, fault: TemplateError) -> NoTools:
    """The error for a model that cannot be given tools."""
    return NoTools(f"{fault}{_instead(model, name, tools=True)}")


def _instead(model: Model, name: str, *, tools: bool) -> str:
    working = [other for other in known() if other != name and _works(model, other, tools=tools)]
    if working:
        return f". The format {working[0]!r} works: set PRORL_RENDERER={working[0]}"
    what = " with tools" if tools else ""
    return f". None of the formats {', '.join(known())} can use this template{what}: use another model or template"


def _works(model: Model, name: str, *, tools: bool) -> bool:
    try:
        made = _made(model, name)
    except TemplateError:
        return False
    return not tools or getattr(made, "tools_fault", None) is None


def _loaded(point: EntryPoint) -> ModelFormat:
    try:
        loaded: ModelFormat = point.load()
    except Exception as error:  # a module may raise anything while it is imported
        raise TemplateError(
            f"the model format {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}; "
            "correct or uninstall its package"
        ) from error
    if not callable(loaded) or not callable(getattr(loaded, "fits", None)):
        raise TemplateError(f"the model format {point.name!r} ({point.value}) is no class with a method `fits`")
    return loaded


def _fits(model: Model, name: str, kind: ModelFormat) -> bool:
    try:
        return kind.fits(model)
    except Exception as error:
        raise TemplateError(
            f"the model format {name!r} cannot say whether it fits {model.name}: {type(error).__name__}: {error}; "
            "correct or uninstall its package"
        ) from error


def _made(model: Model, name: str) -> Format:
    """Raises `TemplateError`, whatever a format raises."""
    try:
        made = known()[name](model)
        lacking = [each for each in MEMBERS if not hasattr(made, each)]
    except TemplateError:
        raise
    except Exception as error:
        raise TemplateError(f"the model format {name!r} raises {type(error).__name__}: {error}") from error
    if lacking:
        raise TemplateError(f"the model format {name!r} lacks {', '.join(lacking)}")
    return made
