"""The server process: `send` has an effect, `lookup` says whether a key's effect happened.

Run with `stdio` or `http`, a folder, and for HTTP `json` or `stream` as the kind of replies. The
folder holds its script (how each `send` ends, see `MODES`) and what it did: every call with its
`_meta`, every effect. The service counts for itself; it tells two equal calls apart by nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is started as a file

import uvicorn
from mcp import McpError, types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn.protocols.http.h11_impl import H11Protocol

from openworker_durable.keys import META_KEY
from tests.waiting import until

MODES = {
    "reply": "it happens and is told",
    "slow": "it happens, and is told once somebody allows it",
    "drop": "it happens, and every connection is cut (HTTP)",
    "die": "it happens, and the process ends",
    "late_error": "it happens, and the reply says that it went wrong",
    "error": "nothing happens, and the reply says so",
    "invalid": "nothing happens, and the protocol says that the parameters are wrong",
    "internal": "it happens, and the protocol says that something inside went wrong",
    "die_first": "nothing happens, and the process ends",
}

NO_PARAMS: dict[str, Any] = {"type": "object", "properties": {}}


class Desk:
    """What the folder holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        text = path.read_text("utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def note(self, name: str, entry: dict[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def next_mode(self) -> str:
        script = self.folder / "script.json"
        modes = json.loads(script.read_text("utf-8")) if script.exists() else []
        done = sum(c["tool"] == "send" for c in self.lines("calls"))
        return str(modes[done]) if done < len(modes) else "reply"

    def effect(self, key: str, what: str) -> str:
        told = f"sent {what} as number {len(self.lines('effects')) + 1}"
        self.note("effects", {"key": key, "what": what, "told": told})
        return told

    def lookup(self, key: str) -> dict[str, Any]:
        found = [e for e in self.lines("effects") if e["key"] == key]
        return {"happened": bool(found), "result": found[0]["told"] if found else None}


class Connections(H11Protocol):
    """The connections of this server, so that they can be cut."""

    open: ClassVar[set[Any]] = set()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        Connections.open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        Connections.open.discard(self.transport)
        super().connection_lost(exc)


def told(text: str, *, error: bool = False) -> types.ServerResult:
    content = types.TextContent(type="text", text=text)
    return types.ServerResult(types.CallToolResult(content=[content], isError=error))


def refused(code: int, text: str) -> McpError:
    return McpError(types.ErrorData(code=code, message=text))


async def send(desk: Desk, mode: str, key: str, what: str) -> types.ServerResult:
    if mode == "error":
        return told("nothing was sent", error=True)
    if mode == "invalid":
        raise refused(types.INVALID_PARAMS, "no such receiver")
    if mode == "die_first":
        os._exit(3)
    text = desk.effect(key, what)
    if mode == "die":
        os._exit(3)
    if mode == "drop":
        for transport in list(Connections.open):
            transport.abort()
    if mode == "slow":
        await until((desk.folder / "release").exists, "leave to reply", bound=30)
    if mode == "internal":
        raise refused(types.INTERNAL_ERROR, "something inside")
    return told("it broke" if mode == "late_error" else text, error=mode == "late_error")


def server_for(desk: Desk) -> Any:
    server: Any = Server("mail")

    async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
        name, arguments = request.params.name, request.params.arguments or {}
        meta = request.params.meta.model_dump(exclude_none=True) if request.params.meta else {}
        mode = desk.next_mode()
        desk.note("calls", {"tool": name, "arguments": arguments, "meta": meta})
        if name == "lookup":
            return told(json.dumps(desk.lookup(str(arguments["key"]))))
        return await send(desk, mode, str(meta.get(META_KEY, "")), str(arguments["what"]))

    async def list_tools(_request: types.ListToolsRequest) -> types.ServerResult:
        tools = [types.Tool(name=n, inputSchema=NO_PARAMS) for n in ("send", "lookup")]
        return types.ServerResult(types.ListToolsResult(tools=tools))

    server.request_handlers[types.CallToolRequest] = call_tool
    server.request_handlers[types.ListToolsRequest] = list_tools
    return server


async def over_stdio(server: Any) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def over_http(server: Any, folder: Path, *, json_replies: bool) -> None:
    manager = StreamableHTTPSessionManager(server, json_response=json_replies)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Mount("/mcp", app=manager.handle_request)], lifespan=lifespan)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (folder / "port.new").write_text(str(listening.getsockname()[1]))
        (folder / "port.new").replace(folder / "port")
        config = uvicorn.Config(app, http=Connections, log_level="critical", ws="none")
        await uvicorn.Server(config).serve(sockets=[listening])


def main(kind: str, place: str, replies: str = "stream") -> None:
    folder = Path(place)
    server = server_for(Desk(folder))
    if kind == "stdio":
        asyncio.run(over_stdio(server))
    else:
        asyncio.run(over_http(server, folder, json_replies=replies == "json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
