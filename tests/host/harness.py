"""A small world for session tests: a manager, tools with counted effects, and crashes.

A crash here is a copy of the state folder taken at that instant, opened by a new manager as
another process would: nobody holds its locks, so the owner counts as dead. The crash tests
proper (tests/crash) kill real processes; these run fast and at every step.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from openworker_durable import thread
from openworker_durable.hosts.attach import Attachment, attach
from openworker_durable.hosts.manager_hooks import runtime_of
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.reference.inbox import InboxItem
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.providers import (
    AssistantTurn,
    Message,
    ScriptedProvider,
    ToolCall,
)
from openworker_durable.hosts.reference.tools import ToolMetadata, tool
from openworker_durable.hosts.runtime import Runtime
from openworker_durable.models import Execution
from openworker_durable.rows import all_rows
from tests.waiting import calm, until

WRITE = ToolMetadata(category="mail", risk_level="high", requires_approval=True)
READ = ToolMetadata(category="search", risk_level="low", requires_approval=False)
SESSION = "s1"


def call(name: str, call_id: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(call_id or f"c_{name}_{len(arguments)}", name, arguments)


def reply(*calls: ToolCall) -> AssistantTurn:
    return AssistantTurn(tool_calls=list(calls), finish_reason="tool_calls")


class Outside:
    """The outside world: counts effects, and can hold a call inside its tool."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []
        self.reads: list[str] = []
        self.inside = threading.Event()
        self.release = threading.Event()
        self.release.set()
        self.raises: dict[str, BaseException] = {}
        self.returns: dict[str, Any] = {}

    def effect(self, name: str, what: str) -> Any:
        before = self.raises.pop(f"{name}:before", None)
        if before is not None:
            raise before
        self.effects.append((name, what))
        self.inside.set()
        self.release.wait(20)
        after = self.raises.pop(name, None)
        if after is not None:
            raise after
        return self.returns.get(name, {"ok": True, "did": f"{name} {what}"})

    def count(self, name: str, what: str | None = None) -> int:
        return sum(n == name and what in (None, w) for n, w in self.effects)

    def tools(self) -> list[Callable[..., Any]]:
        def maker(name: str) -> Callable[..., Any]:
            def called(what: str = "") -> Any:
                return self.effect(name, what)

            called.__name__ = name
            return tool(called, metadata=WRITE)

        def lookup(what: str = "") -> Any:
            self.reads.append(what)
            return {"found": what}

        writers = map(maker, ("send", "pay", "delete", "charge", "mark", "notify"))
        return [*writers, tool(lookup, metadata=READ)]


class World:
    """One process's view: a session manager over a state folder, with the plugin attached."""

    def __init__(self, folder: Path, outside: Outside, script: Sequence[Any]) -> None:
        self.folder, self.outside, self.script = folder, outside, script
        self.provider = ScriptedProvider.by_progress(list(script))
        self.manager = SessionManager(
            data_dir=folder, provider=self.provider, tools=outside.tools()
        )
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def runtime(self) -> Runtime:
        runtime = runtime_of(self.manager)
        assert runtime is not None, "attached"
        return runtime

    # -- driving
    def start(self, text: str = "go") -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.manager.deliver_to_session(SESSION, text))
        self.tasks.append(task)
        return task

    async def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        return await until(condition, what)

    def busy(self) -> Any:
        """Return what runs: turns, and background recovery."""
        return self.manager._running_sessions or self.runtime._tasks

    async def quiet(self) -> None:
        """Wait until nothing runs: no turn, no background recovery."""
        await calm(self.busy)

    async def prompt(self, name: str) -> InboxItem:
        def found() -> InboxItem | None:
            for item in self.manager.inbox.pending(SESSION):
                if item.kind == "approval" and item.data.get("tool") == name:
                    return item
            return None

        item: InboxItem = await self.until(found, f"prompt for {name}")
        return item

    async def allow(self, *names: str, word: str = "allow") -> None:
        for name in names:
            item = await self.prompt(name)
            await self.manager.resolve_inbox(item.id, word)

    async def cut_off_inside(self, name: str) -> None:
        """Allow a call and cancel its turn while it runs in its thread, until it is released."""
        self.outside.release.clear()
        turn = self.start()
        await self.allow(name)
        await asyncio.to_thread(self.outside.inside.wait, 10)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)

    async def say(self, text: str, *allowed: str) -> None:
        task = self.start(text)
        await self.allow(*allowed)
        await task
        await self.quiet()

    async def decide(self, tool: str, resolution: str) -> bool:
        item = self.item(tool)
        done = await self.manager.resolve_inbox(item.id, resolution)
        await self.quiet()
        return done

    async def resume(self) -> None:
        await self.runtime.drive(SESSION)
        await self.quiet()

    async def restart(self) -> World:
        """Start anew after `crash`, the sweep included."""
        await self.manager.start_gateway()
        await self.quiet_or_prompting()
        return self

    async def quiet_or_prompting(self) -> None:
        """Wait until nothing runs, or a prompt waits for the person."""
        await calm(self.busy, unless=lambda: self.manager.inbox.pending(SESSION))

    async def answer_prompt(self, item: InboxItem, word: str = "allow") -> None:
        """Answer a prompt without waiting for the turn that goes on with it."""
        self.tasks.append(asyncio.ensure_future(self.manager.resolve_inbox(item.id, word)))
        await self.until(lambda: item.state == "resolved")

    async def resolve(self, item: InboxItem, word: str) -> None:
        """Decide without waiting for the turn that goes on with it."""
        self.tasks.append(asyncio.ensure_future(self.manager.resolve_inbox(item.id, word)))
        await self.until(lambda: item.state == "resolved")

    async def resume_in_background(self) -> None:
        """Resume without waiting for the turn's end."""
        task = asyncio.ensure_future(self.runtime.drive(SESSION))
        self.tasks.append(task)
        await self.until(lambda: task.done() or self.manager.is_running(SESSION), "its beginning")

    # -- looking
    def rows(self, tool: str | None = None) -> list[Execution]:
        found = self.runtime.ledger.known(all_rows())[::-1]
        ordered = sorted(found, key=lambda r: (r.dispatched_at, r.attempt))
        return [r for r in ordered if tool in (None, r.tool_name)]

    def states(self, tool: str | None = None) -> list[str]:
        return [str(getattr(r.state, "value", r.state)) for r in self.rows(tool)]

    def items(self) -> list[InboxItem]:
        return [
            i
            for i in self.manager.inbox.list(session_id=SESSION)
            if i.kind == "recovery_required" and i.state == "pending"
        ]

    def item(self, tool: str) -> InboxItem:
        found = [i for i in self.items() if i.data["recovery"]["tool"] == tool]
        assert len(found) == 1, [i.title for i in self.items()]
        return found[0]

    def messages(self) -> list[Message]:
        return self.manager.session_messages(SESSION)

    def saved(self) -> list[Message]:
        return self.manager.session_store._read_jsonl(SESSION) or []

    def answer(self, call_id: str) -> str:
        found = [m for m in self.messages() if m.get("tool_call_id") == call_id]
        assert len(found) == 1, found
        return str(found[0]["content"])

    def follow_ups(self) -> list[str]:
        return [str(m["content"]) for m in self.messages() if thread.is_follow_up(m)]

    def valid(self) -> None:
        """The thread is one that providers accept, on disk as in memory."""
        assert thread.pairing_faults(self.messages()) == []
        assert self.saved() == self.messages()

    # -- crashing
    def copy(self, name: str) -> Path:
        target = self.folder.with_name(f"{self.folder.name}-{name}")
        shutil.copytree(
            self.folder, target, ignore=shutil.ignore_patterns("*-shm", "durable-locks", "*.tmp")
        )
        return target

    def reopen(self, folder: Path) -> World:
        return World(folder, self.outside, self.script)

    def crash(self, name: str = "crash") -> World:
        """Return the world as a new process finds it after this one was killed now."""
        return self.reopen(self.copy(name))


class Lab:
    """Makes worlds, and takes them down."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.outside = Outside()
        self.hook: Callable[[str], None] | None = None
        self.attachment: Attachment = attach(REFERENCE, failpoint=self._hit)

    def detach(self) -> None:
        """Go on with the host alone."""
        self.attachment.detach()

    def attach_again(self) -> None:
        """Put the plugin back."""
        self.attachment = attach(REFERENCE, failpoint=self._hit)

    def _hit(self, name: str) -> None:
        if self.hook is not None:
            self.hook(name)

    def world(self, *script: Any, folder: str = "state") -> World:
        return World(self.tmp_path / folder, self.outside, script)

    def reopened(self, folder: Path, *script: Any) -> World:
        """Return the world that a new process finds in `folder`."""
        return World(folder, self.outside, script)

    def copies_at(self, world: World, place: str) -> list[Path]:
        """Arrange that the state folder is copied each time a failpoint is reached."""
        copies: list[Path] = []
        lock = threading.Lock()

        def hook(name: str) -> None:
            if place in (name, "*"):
                with lock:
                    copies.append(world.copy(f"kill{len(copies)}"))

        self.hook = hook
        return copies

    async def close(self) -> None:
        self.hook = None
        self.outside.release.set()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)
        for runtime in list(self.attachment.runtimes):
            manager = runtime.manager
            with contextlib.suppress(Exception):
                await manager.aclose()
        self.attachment.detach()


@contextlib.asynccontextmanager
async def laboratory(tmp_path: Path) -> AsyncIterator[Lab]:
    lab = Lab(tmp_path)
    try:
        yield lab
    finally:
        await lab.close()
