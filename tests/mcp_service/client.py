"""The test's side of the service: its folder, its processes, a connection, the host's hand-over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client import streamable_http
from mcp.client.stdio import stdio_client

from tests.mcp_service.server import Desk
from tests.waiting import until, until_blocking

SERVER = Path(__file__).with_name("server.py")

HTTP_CLIENT: Any = getattr(
    streamable_http, "streamable_http_client", None
) or getattr(streamable_http, "streamablehttp_client", None)  # fmt: skip
"""The SDK's, under the name that its version has."""

TRANSPORTS = ("stdio", "http-stream", "http-json")


class Service(Desk):
    """One service: what it is told to do, what it did, and how to reach it.

    Args:
        folder: where its record lies; survives its processes.
        transport: one of `TRANSPORTS`.
    """

    def __init__(self, folder: Path, transport: str) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.transport, self.url = transport, ""

    def script(self, *modes: str) -> None:
        """Say how each `send` ends, from the first on."""
        (self.folder / "script.json").write_text(json.dumps(modes), "utf-8")

    def release(self) -> None:
        """Let the slow replies go."""
        (self.folder / "release").touch()

    @property
    def sent(self) -> list[str]:
        """Return what was done, by the service's own count."""
        return [str(e["what"]) for e in self.lines("effects")]

    @property
    def metas(self) -> list[dict[str, Any]]:
        """Return the `_meta` of each call that arrived."""
        return [c["meta"] for c in self.lines("calls")]

    async def opened(self, stack: AsyncExitStack) -> ClientSession:
        """Return a session of the SDK's client, as the host opens one."""
        if self.url:
            read, write, *_ = await stack.enter_async_context(HTTP_CLIENT(self.url))
        else:
            errors = stack.enter_context((self.folder / "stderr").open("a"))
            params = StdioServerParameters(
                command=sys.executable, args=[str(SERVER), "stdio", str(self.folder)]
            )
            read, write = await stack.enter_async_context(stdio_client(params, errlog=errors))
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()
        return session


@contextlib.contextmanager
def service(folder: Path, transport: str) -> Iterator[Service]:
    """Yield a service; one over HTTP runs until the end of the block, or until it dies."""
    made = Service(folder, transport)
    with contextlib.ExitStack() as stack:
        if transport != "stdio":
            made.url = stack.enter_context(_process(made))
        yield made


@contextlib.contextmanager
def _process(made: Service) -> Iterator[str]:
    port = made.folder / "port"
    port.unlink(missing_ok=True)
    command = [sys.executable, str(SERVER), "http", str(made.folder), made.transport[5:]]
    with (made.folder / "stderr").open("a") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
    try:
        until_blocking(lambda: port.exists() or process.poll() is not None, "its port", bound=30)
        yield f"http://127.0.0.1:{port.read_text()}/mcp/"
    finally:
        made.release()
        process.kill()
        process.wait()


class Connection:
    """A session that a task of its own holds open, as the host's; made by `connected`."""

    def __init__(self, made: Service) -> None:
        self.made = made
        self.session: ClientSession | None = None
        self.ended: BaseException | None = None
        self.pending: list[Future[Any]] = []
        self._close = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def serve(self) -> None:
        """Hold it open until it is to be closed; keeps what it ended with."""
        try:
            async with AsyncExitStack() as stack:
                self.session = await self.made.opened(stack)
                await self._close.wait()
        except Exception as exc:
            self.ended = exc

    def close(self) -> None:
        """Have it end, with the calls that nobody waits for any more."""
        for future in self.pending:
            future.cancel()
        self._close.set()

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; returns its text, or its error as the host's bridge gives it."""
        assert self.session is not None
        result = await self.session.call_tool(tool, arguments)
        text = "\n".join(getattr(block, "text", "") for block in result.content)
        return {"error": text} if result.isError else text

    def hand_over(self, tool: str, **arguments: Any) -> Future[Any]:
        """Start a call from another thread on the loop of the connection."""
        future = asyncio.run_coroutine_threadsafe(self.call(tool, **arguments), self.loop)
        self.pending.append(future)
        return future

    def bridge(self, tool: str, deadline: float) -> Callable[..., Any]:
        """Return a tool as the host makes it: it waits in its thread, and at the deadline it stops
        waiting and cancels nothing."""

        def invoke(what: str) -> Any:
            return self.hand_over(tool, what=what).result(deadline)

        invoke.__name__ = tool
        return invoke


@contextlib.asynccontextmanager
async def connected(made: Service) -> AsyncIterator[Connection]:
    """Yield a connection that is open, and close it."""
    connection = Connection(made)
    task = asyncio.create_task(connection.serve())
    try:
        await until(lambda: connection.session is not None or task.done(), "a session", bound=30)
        assert connection.session is not None, connection.ended
        yield connection
    finally:
        connection.close()
        await asyncio.wait_for(task, 20)
