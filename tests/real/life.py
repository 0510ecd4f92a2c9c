"""One process of the real host: its manager, and tools with effects outside.

Imported only in processes that can import `coworker`. A life may be told to kill itself at a
place of the host's engine (`PLACES`) or at a failpoint of this package.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from aisuite.agents.types import ToolMetadata
from coworker.automation.models import Schedule, ScheduledTask
from coworker.engine import TurnEngine
from coworker.server.manager import SessionManager

from openworker_durable import rows
from openworker_durable.hosts.attach import attach
from openworker_durable.hosts.openworker import OPENWORKER
from tests.real.script import Script, pairing
from tests.waiting import calm, until

SESSION = "s1"
TOOLS = ("send", "pay", "delete")
CHECKPOINTS = ("turn_start", "permission_required", "iteration_end")
"""Events after which the host's web socket saves the thread."""

PLACES = ("approved", "in_before", "in_after", "returned", "in_thread", "after_save")
"""Where the host's own course of one call can be cut, in order."""


def die() -> None:
    """End this process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def _resolved(item: Any) -> bool:
    return bool(item.state != "pending")


class Life:
    """See the module's docstring.

    Args:
        folder: kept from life to life; the state folder and the outside world lie in it.
        durable: attach this package.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.folder, self.state, self.durable = folder, folder / "state", durable
        self.kill = self.kill_at = ""
        self.grants: tuple[str, ...] = ()
        self.mode = ""
        self.inside: Callable[[str, str], None] = lambda name, to: None
        self.result: Callable[[str, str], Any] = lambda name, to: {
            "ok": True,
            "did": f"{name} {to}",
        }
        self.provider: Any = None
        self.manager: Any = None
        self.tasks: list[asyncio.Future[Any]] = []
        self.events: list[Any] = []

    def open(
        self, *script: Any, kill: str = "", at: str = "", grants: Sequence[str] = (),
        mode: str = "", provider: Any = None, extra_names: Sequence[str] = (),
    ) -> Life:  # fmt: skip
        """Start the host in this process.

        Args:
            script: the model's replies.
            kill: a place, or a failpoint of the package, where the process kills itself.
            at: only in the call whose `to` this is; empty: any.
            grants: tools granted for the session.
            mode: the session's permission mode.
            extra_names: more names for tools with effects.
        """
        self.kill, self.kill_at, self.grants, self.mode = kill, at, tuple(grants), mode
        self.provider = provider or Script(script)
        if self.durable:
            attach(OPENWORKER, failpoint=self._failpoint)
        if kill in PLACES:
            self._arm()
        self.state.mkdir(exist_ok=True)
        self.manager = SessionManager(
            data_dir=self.state, workspace=self.folder, provider=self.provider, model="scripted"
        )
        tools = [self._tool(name) for name in (*TOOLS, *extra_names)]
        self._give_tools(tools)
        return self

    # -- the outside world
    def _tool(self, name: str) -> Any:
        def tool(to: str) -> Any:
            """Have an effect outside."""
            self.inside(name, to)
            self._at("in_before", to)
            line = f"{name} {to}\n".encode()
            fd = os.open(self.folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, line)
            os.fsync(fd)
            os.close(fd)
            self._at("in_after", to)
            return self.result(name, to)

        made: Any = tool
        made.__name__ = name
        made.__aisuite_tool_metadata__ = ToolMetadata(
            name=name, category="mail", risk_level="high", requires_approval=True
        )
        return made

    def _give_tools(self, tools: list[Callable[..., Any]]) -> None:
        manager = self.manager
        get_engine, build = manager.get_engine, manager._build_task_engine

        def with_tools(session_id: str, **kwargs: Any) -> Any:
            kwargs["extra_tools"] = [*(kwargs.get("extra_tools") or []), *tools]
            engine = get_engine(session_id, **kwargs)
            if engine is not None:
                # A summary would hide from the scripted model how far it has come.
                engine.compaction_settings = lambda: {"enabled": False}
                for name in self.grants:
                    engine.permissions.allow_tool_for_session(name)
                if self.mode:
                    engine.permissions.mode = type(engine.permissions.mode)(self.mode)
            return engine

        def build_with_tools(task: Any, *, session_id: str) -> Any:
            engine = build(task, session_id=session_id)
            engine.registry.register_all(tools)
            return engine

        manager.get_engine, manager._build_task_engine = with_tools, build_with_tools

    # -- crashing
    def _at(self, place: str, to: Any) -> None:
        if self.kill == place and self.kill_at in ("", to):
            die()

    def _failpoint(self, name: str) -> None:
        if name == self.kill:
            die()

    def _arm(self) -> None:
        execute, record = TurnEngine._execute_sync, TurnEngine._record_result

        def _execute_sync(engine: Any, tool_call: Any) -> Any:
            self._at("approved", tool_call.arguments.get("to"))
            return execute(engine, tool_call)

        def _record_result(engine: Any, tool_call: Any, result: Any, status: str) -> Any:
            self._at("returned", tool_call.arguments.get("to"))
            event = record(engine, tool_call, result, status)
            self._at("in_thread", tool_call.arguments.get("to"))
            return event

        TurnEngine._execute_sync, TurnEngine._record_result = _execute_sync, _record_result

    # -- ways in
    async def start_up(self) -> None:
        """Start as the server does: with the package, the sweep comes first."""
        await self.manager.start_gateway()

    async def deliver(self, text: str, session: str = SESSION) -> None:
        """Deliver a message that no person typed into a window."""
        await self.manager.deliver_to_session(session, text)

    async def attended(self, text: str = "", *, retry: bool = False) -> None:
        """Drive a turn as the host's web socket does, with the saves it makes."""
        manager, engine = self.manager, self.engine()
        if not manager.try_mark_running(SESSION):
            raise AssertionError("the session is running")
        try:
            async for event in engine.retry() if retry else engine.run(text):
                self.events.append(event)
                if event.type.value in CHECKPOINTS:
                    manager.save(SESSION, engine)
                if event.type.value == "iteration_end":
                    self._at("after_save", self.kill_at)
        finally:
            manager.mark_idle(SESSION)
            manager.save(SESSION, engine)

    async def resume(self) -> None:
        """Resume as durable resume does."""
        engine = self.engine()
        if not self.manager.try_mark_running(SESSION):
            return
        try:
            async for event in engine.resume():
                self.events.append(event)
            self.manager.save(SESSION, engine)
        finally:
            self.manager.mark_idle(SESSION)

    async def go_on(self, then: str) -> None:
        """Start up after a crash and do what the person does first: resume, message, nothing."""
        if then == "message":  # before they answer anything that is asked again
            await self.start_up()
            if self._goes_on():  # the start-up has handed it to durable resume
                self.person()
                await self.quiet()
                await self.attended("and now?")
            else:
                turn = self.later(self.attended("and now?"))
                await asyncio.sleep(0)
                self.person()
                await turn
        else:
            self.person()
            await self.start_up()
        if then == "resume":
            await self.resume()
        await self.quiet()

    def _goes_on(self) -> bool:
        runtime = getattr(self.manager, "_durable_runtime", None)
        return self.manager.is_running(SESSION) or bool(runtime and runtime._tasks)

    # -- automations
    def automation(self, allowed: Sequence[str] = ("send",)) -> str:
        """Make a task that was due a minute ago; returns its id.

        Args:
            allowed: entries of the task's standing permissions: a tool, or a tool and a target.
        """
        schedule = Schedule(kind="cron", cron="*/5 * * * *")
        task = ScheduledTask("mail", "send it", schedule, str(self.folder / "work"))
        task.always_allowed_tools = list(allowed)
        task.next_run = round(time.time()) - 60
        self.manager.task_store.save(task)
        task.next_run = round(time.time()) - 60
        with closing(sqlite3.connect(self.state / "automation.db")) as db, db:
            db.execute(
                "UPDATE scheduled_tasks SET next_run = ?, data = ?",
                (task.next_run, json.dumps(task.to_dict())),
            )
        return str(task.id)

    async def ran(self, sessions: int = 1) -> list[str]:
        """Wait until the due runs have ended or ask; returns their sessions, newest last."""
        scheduler = self.manager.scheduler
        await self.until(lambda: len(self.run_sessions()) >= sessions, "the run")

        def rests() -> bool:
            return not scheduler._running_ids or any(map(self.approvals, self.run_sessions()))

        await self.until(rests, "the end of the run")
        return self.run_sessions()

    def run_sessions(self) -> list[str]:
        """Return the sessions of all runs, oldest first."""
        store = self.manager.task_store
        runs = [r for t in store.list() for r in store.runs(t.id)]
        return [r.session_id for r in sorted(runs, key=lambda r: r.started_at)]

    # -- the person
    def later(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Do something beside."""
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def attended_and_allowed(self, text: str) -> None:
        """Drive a turn with a window open and a person who allows everything."""
        self.person()
        await self.attended(text)

    def person(self, word: str = "allow") -> None:
        """Answer every approval from now on."""
        self.later(self._answer_all(word))

    async def _answer_all(self, word: str) -> None:
        while True:
            for item in self.approvals():
                self.later(self.manager.resolve_inbox(item.id, word))
                await self.until(functools.partial(_resolved, item), "answered")
            await until(self.approvals, "another prompt", bound=3600)

    def approvals(self, session: str = SESSION) -> list[Any]:
        """Return the approvals that wait."""
        return [i for i in self.manager.inbox.pending(session) if i.kind == "approval"]

    async def asked(self, to: str, session: str = SESSION) -> Any:
        """Wait for the prompt of one call."""

        def found() -> Any:
            waiting = self.approvals(session)
            return next((i for i in waiting if i.data["arguments"].get("to") == to), None)

        return await self.until(found, f"prompt for {to}")

    async def answer(self, item: Any, word: str = "allow") -> bool:
        """Answer one item; does not wait for the turn that goes on with it."""
        done = self.later(self.manager.resolve_inbox(item.id, word))
        await self.until(lambda: done.done() or item.state != "pending", f"answered {word}")
        return done.result() if done.done() else True

    async def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Wait until something is true.

        Raises:
            AssertionError: it never was, within ten seconds or so.
        """
        return await until(condition, what)

    async def quiet(self) -> None:
        """Wait until no turn runs and no background recovery."""
        await calm(self._busy, looks=9)

    def _busy(self) -> list[Any]:
        runtime = getattr(self.manager, "_durable_runtime", None)
        tasks = runtime._tasks if runtime is not None else ()
        return [*self.manager._running_sessions, *tasks]

    async def settled(self) -> None:
        """Wait until nothing runs, or a prompt waits for the person."""
        await calm(self._busy, unless=self.approvals, looks=9)

    # -- looking
    def engine(self, session: str = SESSION) -> Any:
        """Return the session's engine."""
        return self.manager.get_engine(session)

    @property
    def runtime(self) -> Any:
        """Return the package's runtime of the state folder."""
        return self.manager._durable_runtime

    def messages(self, session: str = SESSION) -> list[dict[str, Any]]:
        """Return the thread: the engine's, or else the saved one."""
        engine = self.manager._engines.get(session)
        found = engine.messages if engine is not None else self.saved(session)
        return [m for m in found if m.get("role") != "system"]

    def saved(self, session: str = SESSION) -> list[dict[str, Any]]:
        """Return the thread on disk."""
        return self.manager.session_store._read_jsonl(session) or []

    def items(self, session: str = SESSION) -> list[Any]:
        """Return the recovery items that are up."""
        return [
            i for i in self.manager.inbox.list(session_id=session)
            if i.kind == "recovery_required" and i.state == "pending"
        ]  # fmt: skip

    def rows(self) -> list[Any]:
        """Return the ledger's rows, first to last."""
        found = self.runtime.ledger.known(rows.all_rows())
        return sorted(found, key=lambda r: (r.dispatched_at or 0, r.attempt))

    def states(self) -> list[str]:
        """Return the rows' states."""
        return [str(getattr(r.state, "value", r.state)) for r in self.rows()]

    def facts(self, session: str = SESSION) -> dict[str, Any]:
        """Return what a test wants to know of this life, as JSON can carry it."""
        messages = self.messages(session)
        keep = ("role", "content", "tool_call_id", "tool_calls", "kind", "text", "source")
        return {
            "messages": [{k: m[k] for k in keep if m.get(k)} for m in messages],
            "faults": pairing(messages),
            "disk": pairing(self.saved(session)),
            "items": [
                {"kind": i.kind, "state": i.state, "title": i.title, "body": i.body, "id": i.id}
                for i in self.manager.inbox.list(session_id=session)
            ],
            "states": self.states() if self.durable else [],
            "reasons": [r.reason for r in self.rows()] if self.durable else [],
        }

    def on_disk(self, call_id: str, session: str = SESSION) -> dict[str, Any]:
        """Say what another process would read about a call now: its message and its row."""
        with closing(sqlite3.connect(self.state / "coworker.db")) as db:
            found = db.execute(
                "SELECT state FROM tool_executions WHERE tool_call_id = ?", (call_id,)
            ).fetchall()
        path = self.state / "conversations" / f"{session}.jsonl"
        lines = [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []
        made = [c["id"] for m in lines for c in m.get("tool_calls") or []]
        answered = [m["tool_call_id"] for m in lines if m.get("role") == "tool"]
        return {
            "states": [r[0] for r in found],
            "call saved": call_id in made,
            "answered": call_id in answered,
        }

    def log_lines(self) -> list[str]:
        """Return what this life printed so far."""
        newest = max(self.folder.glob("log*"), key=lambda p: int(p.name[3:]))
        return newest.read_text().splitlines()
