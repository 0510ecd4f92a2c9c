"""A session's MCP tools are connected before anything of it runs (C31), on either host."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest_asyncio

from openworker_durable.hosts.names import HostNames
from openworker_durable.hosts.reference.tools import tool
from openworker_durable.rows import all_rows
from openworker_durable.thread import pairing_faults
from tests.host.surfaces import SESSION, provider
from tests.waiting import until

NAME = "mcp__mail__send"


@dataclass
class Metadata:
    """A tool's metadata as the host makes it for MCP tools."""

    name: str = NAME
    category: str = "mcp"
    risk_level: str = "medium"
    requires_approval: bool = True
    capabilities: list[str] = field(default_factory=lambda: ["mail"])


class Server:
    """An MCP server: up or down, and what it did."""

    def __init__(self) -> None:
        self.up = True
        self.sent: list[str] = []
        self.connects = 0
        self.gate: asyncio.Event | None = None
        self.running: list[bool] = []

    def tools(self) -> list[Any]:
        def send(to: str = "") -> dict[str, Any]:
            """Send one mail."""
            self.sent.append(to)
            return {"sent": to}

        send.__name__ = NAME
        return [tool(send, metadata=Metadata())]

    def of(self, manager: Any) -> Callable[..., Any]:
        """Return what stands for the manager's own connecting: nothing for a cached engine."""

        async def prepare(session_id: str, **_: Any) -> list[Any]:
            if session_id in manager._engines:
                return []
            self.connects += 1
            self.running.append(manager.is_running(session_id))
            if self.gate is not None:
                await self.gate.wait()
            return self.tools() if self.up else []

        return prepare


class Lives:
    """One state folder after another, as a new process finds it."""

    def __init__(self, names: HostNames, folder: Path) -> None:
        self.names, self.folder = names, folder
        self.server = Server()
        self.managers: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def begin(self, folder: str = "state") -> Any:
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        manager = self.names.load("manager")(
            workspace=str(place), data_dir=str(place), model="x",
            provider=provider(self.names, ("c1", NAME, {"to": "ann"})),
        )  # fmt: skip
        manager.prepare_mcp_tools = self.server.of(manager)
        self.managers.append(manager)
        return manager

    async def killed_at_the_prompt(self) -> Any:
        """Return the next life of a session whose MCP call waits for its approval."""
        first = self.begin()
        self.deliver(first, "mail ann")
        await until(lambda: prompts(first))
        skip = shutil.ignore_patterns("*-shm", "durable-locks", "*.tmp")
        shutil.copytree(self.folder / "state", self.folder / "next", ignore=skip)
        return self.begin("next")

    def deliver(self, manager: Any, text: str) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(manager.deliver_to_session(SESSION, text))
        self.tasks.append(task)
        return task

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for manager in self.managers:
            await manager.aclose()


@pytest_asyncio.fixture
async def lives(host: HostNames, tmp_path: Path) -> AsyncIterator[Lives]:
    made = Lives(host, tmp_path)
    yield made
    await made.close()


def prompts(manager: Any) -> list[Any]:
    return [i for i in manager.inbox.list(state="pending") if i.kind == "approval"]


def states(manager: Any) -> list[str]:
    return [r.state.value for r in manager._durable_runtime.ledger.known(all_rows())]


def said(manager: Any, text: str) -> bool:
    said = [m for m in thread(manager) if m["role"] != "system"]
    return any(text in str(m.get("content") or m.get("text")) for m in said)


def thread(manager: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = manager.session_messages(SESSION)
    return messages


async def test_c31_an_approved_call_is_run_with_its_server_connected_first(lives: Lives) -> None:
    manager = await lives.killed_at_the_prompt()
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    assert lives.server.sent == ["ann"]
    assert states(manager) == ["succeeded"]
    assert said(manager, "done")
    assert all(lives.server.running), "claimed before anything is awaited"


async def test_c31_a_call_whose_server_is_down_stays_open_and_says_why(lives: Lives) -> None:
    manager = await lives.killed_at_the_prompt()
    lives.server.up = False
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    assert lives.server.sent == []
    assert said(manager, f"{NAME} cannot be reached")
    assert not said(manager, "unknown tool")
    assert not said(manager, "done"), "the model is not called over an open call"
    assert pairing_faults(thread(manager)) == ["call c1 is not answered"]


async def test_c31_once_its_server_is_back_the_call_runs_once(lives: Lives) -> None:
    manager = await lives.killed_at_the_prompt()
    lives.server.up = False
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    lives.server.up = True
    await manager._durable_runtime.drive(SESSION)
    assert lives.server.sent == ["ann"]
    assert states(manager) == ["succeeded"]
    assert pairing_faults(thread(manager)) == []
    await manager._durable_runtime.drive(SESSION)
    assert lives.server.sent == ["ann"]


async def test_c31_a_new_message_does_not_wait_for_the_server(lives: Lives) -> None:
    manager = await lives.killed_at_the_prompt()
    lives.server.up = False
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    await manager.deliver_to_session(SESSION, "never mind")
    assert said(manager, "not started")
    assert said(manager, "done")
    assert pairing_faults(thread(manager)) == []
    lives.server.up = True
    await manager._durable_runtime.drive(SESSION)
    assert lives.server.sent == []


async def test_a_delivery_connects_the_tools_of_a_session_nobody_looks_at(lives: Lives) -> None:
    manager = lives.begin()
    lives.deliver(manager, "mail ann")
    await until(lambda: prompts(manager))
    assert lives.server.connects == 1
    assert lives.server.running == [True]


async def test_a_second_delivery_waits_for_the_tools_of_the_first(lives: Lives) -> None:
    """It would build, and cache, an engine without them."""
    manager = lives.begin()
    lives.server.gate = asyncio.Event()
    first = lives.deliver(manager, "mail ann")
    await until(lambda: lives.server.connects)
    second = lives.deliver(manager, "and tell me")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert SESSION not in manager._engines
    lives.server.gate.set()
    await until(lambda: prompts(manager))
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    await asyncio.gather(first, second)
    assert lives.server.sent == ["ann"]
    assert lives.server.connects == 1
    assert manager._engines[SESSION].registry.get(NAME) is not None


async def test_c31_a_server_that_never_answers_does_not_hold_the_session(lives: Lives) -> None:
    manager = await lives.killed_at_the_prompt()
    lives.server.gate = asyncio.Event()
    manager._durable_runtime.opening.patience = 0.05
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    assert not manager.is_running(SESSION)
    assert lives.server.sent == []
    assert said(manager, f"{NAME} cannot be reached")
    await manager.deliver_to_session(SESSION, "never mind")
    assert said(manager, "done")
    lives.server.gate.set()


async def test_c31_settings_that_cannot_be_read_do_not_swallow_an_approval(lives: Lives) -> None:
    manager = await lives.killed_at_the_prompt()

    async def broken(session_id: str, **_: Any) -> list[Any]:
        raise TypeError("args must be a list")

    connect, manager.prepare_mcp_tools = manager.prepare_mcp_tools, broken
    await manager.resolve_inbox(prompts(manager)[0].id, "allow")
    assert said(manager, f"{NAME} cannot be reached")
    manager.prepare_mcp_tools = connect
    await manager._durable_runtime.drive(SESSION)
    assert lives.server.sent == ["ann"]


async def test_whoever_opens_a_session_while_its_tools_are_fetched_gets_the_same_engine(
    lives: Lives,
) -> None:
    manager = lives.begin()
    engine = manager.get_engine(SESSION)
    lives.server.gate = asyncio.Event()
    opening = manager._durable_runtime.opening
    task = asyncio.ensure_future(opening.connect(SESSION, {NAME}))
    await until(lambda: lives.server.connects)
    assert manager.get_engine(SESSION) is engine
    lives.server.gate.set()
    assert await task == set()
    assert manager.get_engine(SESSION) is engine
    assert engine.registry.get(NAME) is not None
