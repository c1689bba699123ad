"""The tools an agent can call: name, description, arguments, limits and what it does, in one table.

The arguments of a tool are a struct: its JSON schema goes into the prompt, and a call is checked against it. A tool
that is not ours (`workers.agent.mcp_tools`) brings its JSON schema along. What a tool answers is text for the model.
A `SandboxError` is none: it passes through as our own failure.
"""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from prorl_mq.process import tracing
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.images.header import MAX_BYTES, ImageRefused, shape_of
from prorl_mq.schema.images.placed import PromptImage
from prorl_mq.schema.images.rows import MARK
from sandbox.protocol import EditorCommand, Sandbox
from workers.agent.calls import Call

MAX_ARGUMENT_BYTES = 256 << 10
MAX_OUTPUT_CHARS = 16 << 10


class UnknownTool(LookupError):
    """A row offers a tool that there is not."""

    retryable = False
    cause = Cause.ROW


class Refused(StrEnum):
    """Why a call did not run. The metrics count calls by these words."""

    UNREADABLE = "unreadable"  # no JSON, or none that is a call; or one too many in a turn
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_ARGUMENTS = "wrong_arguments"
    TOO_LARGE = "too_large"


class Resumes(StrEnum):
    """Treatment of a tool's calls when a later attempt continues with a rollout."""

    NEVER = "never"  # a rollout with such a tool starts again: nobody knows what its calls have changed, and where
    KEPT = "kept"  # they act in the job's sandbox, or on nothing: their answers are taken from the log, and where the
    # sandbox is lost, they are made again in a new one, and must answer alike
    HERE = "here"  # the same, but a rollout that has lost its sandbox starts again: they reach beyond it
    AGAIN = "again"  # they act on what the handler holds in its process: they are made again, and must answer the same


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer to the model. `final` ends the rollout."""

    text: str
    ok: bool = True
    final: bool = False
    refused: Refused | None = None  # the call was wrong and did not run
    image: PromptImage | None = None  # the model sees it in front of the text, which begins with its mark


Answer = ToolAnswer  # its name in 0.1.0; goes with the next release


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The things a tool may act on, and for how long."""

    sandbox: Sandbox | None
    timeout_s: float
    admit: Callable[[PromptImage], str] = lambda _: "nothing here shows images"  # why the model cannot be shown one

    def need_sandbox(self) -> Sandbox:
        """Raises `LookupError` in a task without sandbox: offering such a tool there is a mistake of the handler."""
        if self.sandbox is None:
            raise LookupError("a tool that needs a sandbox was offered in a task that has none; fix the task family")
        return self.sandbox


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool; its docstring is the tool's description."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. `run` gets the struct; where `arguments` is a JSON schema, the object as it was checked."""

    name: str
    description: str
    arguments: type[Arguments] | Mapping[str, Any]
    run: Callable[[ToolContext, Any], Awaitable[ToolAnswer]]
    max_argument_bytes: int = MAX_ARGUMENT_BYTES
    max_output_chars: int = MAX_OUTPUT_CHARS
    resumes: Resumes = Resumes.NEVER
    shows: bool = False  # its answers may have images

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments."""
        return self.arguments if isinstance(self.arguments, Mapping) else parameters(self.arguments)

    def schema(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """Reads the arguments of `run`. Raises `ValueError` that says what is wrong."""
        if isinstance(self.arguments, Mapping):
            return _fitting(arguments, self.arguments)
        # Not strict: "true" and "30" are read as what they stand for.
        return msgspec.convert(dict(arguments), self.arguments, strict=False)


def _fitting(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Names and types are checked, the rest is left to who wrote the schema.

    It may be a stranger's, and patterns, references and alternatives can be written to hang or misuse who reads them.
    """
    listed = schema.get("properties")
    properties = listed if isinstance(listed, Mapping) else {}
    for name in _texts(schema.get("required")):
        if name not in arguments:
            raise ValueError(f"{name!r} is a required property")
    for name, value in arguments.items():
        if name not in properties and schema.get("additionalProperties") is False:
            raise ValueError(f"there is no property {name!r}")
        spec = properties.get(name)
        wanted = spec.get("type") if isinstance(spec, Mapping) else None
        kinds = [kind for kind in _texts(wanted if isinstance(wanted, list) else [wanted]) if kind in _JSON]
        if kinds and not any(_is(value, kind) for kind in kinds):
            raise ValueError(f"{str(value)[:100]!r} is not of type {' or '.join(map(repr, kinds))} - at `$.{name}`")
    return dict(arguments)


_JSON: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def _texts(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _JSON[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


@functools.cache
def parameters(arguments: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of an arguments struct, with nothing in it that a model need not read."""
    _, definitions = msgspec.json.schema_components([arguments])
    schema = dict(definitions[arguments.__name__])
    properties = {name: _plain(spec) for name, spec in schema["properties"].items()}
    return {"type": "object", "properties": properties, "required": schema["required"]}


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    choices = [choice for choice in spec.get("anyOf", ()) if choice.get("type") != "null"]
    kept = {key: value for key, value in spec.items() if key not in {"anyOf", "default"}}
    return {**choices[0], **kept} if choices else kept


def beyond(tools: Sequence[Tool], calls: Sequence[Call]) -> list[str]:
    """The tools among those that are called which also act beyond the sandbox."""
    reach = {tool.name for tool in tools if tool.resumes is Resumes.HERE}
    return [call.name for call in calls if call.name in reach]


async def call_tool(tools: Sequence[Tool], name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolAnswer:
    """Runs one call. A call that cannot be run is answered with what is wrong and how to write it."""
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        known = ", ".join(tool.name for tool in tools)
        return refusal(Refused.UNKNOWN_TOOL, f"there is no tool {name!r}. The tools are: {known}")
    size = len(json.dumps(arguments))
    if size > tool.max_argument_bytes:
        said = f"the arguments of {name} take {size} bytes; at most {tool.max_argument_bytes} are taken. Split them"
        return refusal(Refused.TOO_LARGE, said)
    try:
        converted = tool.read(arguments)
    except ValueError as error:  # msgspec.ValidationError is one
        wanted = json.dumps(tool.parameters.get("properties", {}))
        return refusal(Refused.WRONG_ARGUMENTS, f"wrong arguments for {name}: {error}. Its parameters are {wanted}")
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    with tracing.span(f"execute_tool {name}", about=about):
        answer = await tool.run(context, converted)
    return msgspec.structs.replace(answer, text=capped(answer.text, tool.max_output_chars))


def refusal(refused: Refused, reason: str) -> ToolAnswer:
    return ToolAnswer(text=f"Error: {capped(reason)}", ok=False, refused=refused)


def capped(text: str, limit: int = MAX_OUTPUT_CHARS) -> str:
    """Head and tail of a long text, with what was left out said between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


class ExecuteBash(Arguments, frozen=True, kw_only=True):
    """Runs a bash command in a persistent shell."""

    command: Annotated[str, Meta(description="The command; input for the running one if is_input is true.")]
    is_input: Annotated[bool, Meta(description="Send the command as input to the running process.")] = False
    timeout: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Seconds to wait.")] = None


class Think(Arguments, frozen=True, kw_only=True):
    """Writes down a thought; changes nothing."""

    thought: Annotated[str, Meta(description="The thought.")]


class FinishArguments(Arguments, frozen=True, kw_only=True):
    """Ends the task with the final answer."""

    message: Annotated[str, Meta(description="The final answer.")]
    task_completed: Annotated[
        Literal["true", "false", "partial"] | bool | None, Meta(description="Whether the task is done.")
    ] = None


class ExecuteIPythonCell(Arguments, frozen=True, kw_only=True):
    """Runs Python code in a persistent IPython kernel."""

    code: Annotated[str, Meta(description="The code.")]


class StrReplaceEditor(Arguments, frozen=True, kw_only=True):
    """Views and edits files."""

    command: Annotated[Literal["view", "create", "str_replace", "insert", "undo_edit"], Meta(description="What to do.")]
    path: Annotated[str, Meta(description="Absolute path.")]
    file_text: Annotated[str | None, Meta(description="Content of the file, for create.")] = None
    old_str: Annotated[str | None, Meta(description="Text to replace; it must occur once.")] = None
    new_str: Annotated[str | None, Meta(description="Text to put there, for str_replace or insert.")] = None
    insert_line: Annotated[int | None, Meta(description="Line after which to insert.")] = None
    view_range: Annotated[list[int] | None, Meta(description="First and last line, for view.")] = None


class ViewImage(Arguments, frozen=True, kw_only=True):
    """Shows an image file: PNG, JPEG or WebP."""

    path: Annotated[str, Meta(description="Absolute path.")]


async def _bash(context: ToolContext, arguments: ExecuteBash) -> ToolAnswer:
    timeout_s = min(arguments.timeout or context.timeout_s, context.timeout_s)
    sandbox = context.need_sandbox()
    result = await sandbox.bash(arguments.command, timeout_s=timeout_s, is_input=arguments.is_input)
    if result.exit_code is None:
        state = f"[still running after {result.seconds:.0f} s; call again with is_input true to send it input]"
    else:
        state = f"[exit code {result.exit_code}]" if result.exit_code else ""
    text = "\n".join(part for part in (result.output.rstrip("\n"), state) if part)
    return ToolAnswer(text=text or "[no output]", ok=result.exit_code == 0)


async def _ipython(context: ToolContext, arguments: ExecuteIPythonCell) -> ToolAnswer:
    result = await context.need_sandbox().ipython(arguments.code, timeout_s=context.timeout_s)
    state = f"[stopped after {result.seconds:.0f} s]" if result.timed_out else ""
    text = "\n".join(part for part in (result.output.rstrip("\n"), state) if part)
    return ToolAnswer(text=text or "[no output]", ok=result.ok)


async def _editor(context: ToolContext, arguments: StrReplaceEditor) -> ToolAnswer:
    lines = arguments.view_range
    if lines is not None and len(lines) != 2:
        said = f"view_range is [first, last]: two line numbers, not {len(lines)}"
        return refusal(Refused.WRONG_ARGUMENTS, said)
    command = EditorCommand(
        command=arguments.command,
        path=arguments.path,
        file_text=arguments.file_text,
        old_str=arguments.old_str,
        new_str=arguments.new_str,
        insert_line=arguments.insert_line,
        view_range=(lines[0], lines[1]) if lines else None,
    )
    result = await context.need_sandbox().edit(command)
    return ToolAnswer(text=result.output, ok=result.ok)


async def _view_image(context: ToolContext, arguments: ViewImage) -> ToolAnswer:
    try:
        data = await context.need_sandbox().read_file(arguments.path, limit_bytes=MAX_BYTES)
        shape = shape_of(data)
    except OSError as error:
        return ToolAnswer(text=f"Error: {error.strerror}: {arguments.path}", ok=False)
    except ImageRefused as error:
        return ToolAnswer(text=f"Error: {arguments.path} is not shown: {error}", ok=False)
    image = PromptImage(kind=shape.kind, width=shape.width, height=shape.height, data=data)
    if why := await asyncio.to_thread(context.admit, image):
        return ToolAnswer(text=f"Error: {arguments.path} is not shown: {why}", ok=False)
    return ToolAnswer(text=MARK, image=image)


async def _think(_: ToolContext, __: Think) -> ToolAnswer:
    return ToolAnswer(text="Your thought has been noted.")


async def _finish(_: ToolContext, arguments: FinishArguments) -> ToolAnswer:
    return ToolAnswer(text=arguments.message, final=True)


def _tool(
    name: str, arguments: type[Arguments], run: Callable[[ToolContext, Any], Awaitable[ToolAnswer]], **more: bool
) -> Tool:
    description = arguments.__doc__ or ""
    return Tool(name=name, description=description, arguments=arguments, run=run, resumes=Resumes.KEPT, **more)


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        _tool("execute_bash", ExecuteBash, _bash),
        _tool("think", Think, _think),
        _tool("finish", FinishArguments, _finish),
        _tool("execute_ipython_cell", ExecuteIPythonCell, _ipython),
        _tool("str_replace_editor", StrReplaceEditor, _editor),
        _tool("view_image", ViewImage, _view_image, shows=True),
    )
}


def offered(family: Sequence[str], wanted: bool | Sequence[str], allowed: Sequence[str] | None) -> list[str]:
    """Names of the tools for one job: what its task wants of what the family has, as far as the batch allows it."""
    names = list(family) if wanted is True else list(wanted or ())
    return names if allowed is None else [name for name in names if name in allowed]


def select(names: Sequence[str]) -> list[Tool]:
    """The named tools. Raises `UnknownTool` that lists the known ones."""
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        raise UnknownTool(f"no tool is named {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    return [TOOLS[name] for name in names]
