"""Tools of MCP servers, for the time of one rollout.

A server that is a program runs in the job's sandbox, whatever a task says: it can do what the agent can. One that is
reached over HTTP must be on the operator's list (PRORL_MCP_SERVERS, `name=url` separated by commas), for a request
leaves from the worker. A server that fails is told to the model as a failed call; one that cannot be reached is ours.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from prorl_mq.schema.faults import Cause
from sandbox.protocol import Sandbox
from workers.agent.tools import Tool, ToolAnswer, ToolContext

SERVERS = "PRORL_MCP_SERVERS"
START_S = 30.0
CALL_S = 600.0  # the loop's own limit is shorter
_BRIDGE = Path(__file__).with_name("mcp_bridge.py")


class McpFailed(Exception):
    """A server does not speak, or is not there: the policy is not to blame."""

    retryable = True
    cause = Cause.NODE


class McpUnknown(Exception):
    """A task names a server that nobody has configured."""

    retryable = False
    cause = Cause.NODE


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A server: a program and its arguments, run in the sandbox, or one of the operator's by name alone."""

    name: str
    command: Sequence[str] = ()


def servers_of(named: Sequence[str | ServerSpec]) -> list[ServerSpec]:
    """The servers of a payload's `mcp`; a name alone is one of the operator's."""
    return [ServerSpec(name=each) if isinstance(each, str) else each for each in named]


@asynccontextmanager
async def mcp_tools(servers: Sequence[ServerSpec], sandbox: Sandbox | None) -> AsyncIterator[list[Tool]]:
    """The tools of all of them. Raises `McpFailed` or `McpUnknown`."""
    try:
        async with AsyncExitStack() as stack:
            tools: list[Tool] = []
            for place, server in enumerate(servers):
                streams = _in_sandbox(server, place, sandbox) if server.command else _over_http(server)
                tools += await _tools(server, await stack.enter_async_context(streams), stack)
            yield tools
    except ExceptionGroup as group:  # task groups of mcp wrap whatever passes through them
        raise _first(group) from None


async def _tools(server: ServerSpec, streams: Any, stack: AsyncExitStack) -> list[Tool]:
    from mcp import ClientSession

    session: Any = await stack.enter_async_context(ClientSession(*streams[:2]))
    try:
        with anyio.fail_after(START_S):
            await session.initialize()
            listed = await session.list_tools()
    except Exception as error:
        raise McpFailed(f"the MCP server {server.name} did not list its tools: {_said(error)}") from error
    return [_tool(session, tool.model_dump(by_alias=True)) for tool in listed.tools]


def _tool(session: Any, told: Mapping[str, Any]) -> Tool:
    name = str(told["name"])

    async def run(context: ToolContext, arguments: Mapping[str, Any]) -> ToolAnswer:
        try:
            with anyio.fail_after(context.timeout_s):
                result = await session.call_tool(name, dict(arguments))
        except TimeoutError:
            return ToolAnswer(text=f"[stopped after {context.timeout_s:.0f} s]", ok=False)
        except Exception as error:  # what a server says against a call has a type of its own in each release of mcp
            return ToolAnswer(text=f"Error: {_said(error)}", ok=False)
        said = result.model_dump(by_alias=True)
        text = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in said.get("content", ()))
        return ToolAnswer(text=text or "[no output]", ok=not said.get("isError"))

    return Tool(name=name, description=str(told.get("description") or ""), arguments=told["inputSchema"], run=run)


def _over_http(server: ServerSpec) -> Any:
    from mcp.client.streamable_http import streamable_http_client

    known = dict(pair.strip().split("=", 1) for pair in os.environ.get(SERVERS, "").split(",") if "=" in pair)
    if server.name not in known:
        raise McpUnknown(
            f"no MCP server is called {server.name!r}; the operator's list has {', '.join(known) or 'none'} ({SERVERS})"
        )
    return streamable_http_client(known[server.name])


@asynccontextmanager
async def _in_sandbox(server: ServerSpec, place: int, sandbox: Sandbox | None) -> AsyncIterator[Any]:
    """Streams of messages to and from a program: one run of the bridge for each message that goes in."""
    from mcp.shared.message import SessionMessage

    if sandbox is None:
        raise McpFailed(f"the MCP server {server.name} is a program, and the task has no sandbox to run it in")
    socket = f"/tmp/mcp-{place}"  # noqa: S108 - inside, not here
    bridge = ["python3", "-I", "-c", _BRIDGE.read_text(encoding="utf-8")]
    started = await sandbox.run([*bridge, "start", socket, *server.command], timeout_s=START_S)
    if started.exit_code != 0:
        said = started.stderr.decode(errors="replace")[-500:]
        raise McpFailed(f"the MCP server {server.name} did not start: {said}")
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](64)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](64)

    async def hand_over(message: SessionMessage) -> None:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        result = await sandbox.run([*bridge, "call", socket], stdin=line, timeout_s=CALL_S, output_bytes=1 << 24)
        asked = json.loads(line)
        if result.stdout:
            await incoming.send(_message(_without_checks(result.stdout)))
        elif "id" in asked:
            fault = {"code": -32000, "message": f"the MCP server {server.name} has ended"}
            told = {"jsonrpc": "2.0", "id": asked["id"], "error": fault}
            await incoming.send(_message(json.dumps(told).encode()))

    async with anyio.create_task_group() as group:

        async def pump() -> None:
            async for message in outgoing:
                group.start_soon(hand_over, message)

        group.start_soon(pump)
        yield read, write
        group.cancel_scope.cancel()


def _without_checks(line: bytes) -> bytes:
    """Without the schemas of results: mcp would hold them against results here, and a stranger wrote them."""
    try:
        told = json.loads(line)
        for tool in told["result"]["tools"]:
            tool.pop("outputSchema", None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return line
    return json.dumps(told).encode()


def _message(line: bytes) -> Any:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _said(error: Exception) -> str:
    first = _first(error)
    return f"{type(first).__name__}: {first}"[:500]
