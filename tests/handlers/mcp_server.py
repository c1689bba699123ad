"""A stdio MCP server of the standard library alone, as it runs in a sandbox: `word`, `fail` and `die`."""

import json
import os
import sys
from pathlib import Path

TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    for name in ("word", "fail", "die")
]
TOOLS[0]["outputSchema"] = {"$ref": "file:///etc/hostname"}  # who checks results by it reads the file
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {}
    if asked["method"] == "initialize":
        version = asked["params"]["protocolVersion"]
        result = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        result = {"tools": TOOLS}
    elif asked["method"] == "tools/call":
        name, arguments = asked["params"]["name"], asked["params"].get("arguments") or {}
        if name == "die":
            sys.exit(1)
        said = f"wombat {arguments.get('n')} in {Path.cwd()} as {os.getpid()}"
        result = {"content": [{"type": "text", "text": said}], "isError": name == "fail"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
