"""The session manager: owns the stores, builds engines, drives and resumes turns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .audit import AuditStore
from .automation import ScheduledTask, Scheduler, TaskRun, TaskStore
from .chat import Chat, Gateway, InboxRouting
from .compaction import CompactionState
from .conversations import ConversationStore, title_from
from .engine import Approver, QuestionAsker, TurnEngine
from .events import Event
from .gate_effects import GateEffects
from .gates import Requester
from .inbox import VIS_INLINE, InboxItem, InboxStore
from .inbox_prompts import InboxPrompts
from .messages import last_text
from .permissions import Mode, PermissionEngine
from .providers import Message, ProviderClient, ScriptedProvider
from .sessions import SessionRecord
from .tools import ASK_USER, ToolFunction, ToolRegistry, mcp_tool
from .watchers import SendCallback, Watchers

logger = logging.getLogger(__name__)

# Events after which an attended turn is saved. A finished tool is not among them.
CHECKPOINTS = frozenset({"turn_start", "permission_required", "iteration_end"})


class SessionManager(Chat, InboxPrompts, GateEffects, Watchers):
    """All sessions of one state folder.

    Args:
        workspace: folder that new sessions work in.
        data_dir: the state folder; by default `.coworker` inside the workspace.
        tools: what every engine registers, beside `ask_user`.
        mcp_servers: tools of each MCP server, by its name.
    """

    def __init__(
        self,
        *,
        workspace: str | Path | None = None,
        data_dir: str | Path | None = None,
        model: str = "scripted",
        mode: Mode = Mode.INTERACTIVE,
        provider: ProviderClient | None = None,
        tools: Sequence[ToolFunction] = (),
        mcp_servers: dict[str, list[ToolFunction]] | None = None,
    ) -> None:
        self.default_workspace = str(Path(workspace).resolve()) if workspace else None
        self.model = model
        self.mode = mode
        self.provider = provider or ScriptedProvider()
        self.tools = tuple(tools)
        self.mcp_servers = mcp_servers or {}
        base = Path(data_dir) if data_dir else Path(self.default_workspace or ".") / ".coworker"
        base.mkdir(parents=True, exist_ok=True)
        self._data_base = base
        self.audit_store = AuditStore(base / "coworker.db")
        self.session_store = ConversationStore(base)
        self.inbox = InboxStore(base / "inbox.json")
        self.task_store = TaskStore(base / "automation.db")
        self.scheduler = Scheduler(self.task_store, self._run_scheduled_task)
        self.inbox_routing = InboxRouting()
        self.gateway: Gateway | None = None
        self._promotion_rebuild: set[str] = set()
        self._engines: dict[str, TurnEngine] = {}
        self._running_sessions: set[str] = set()
        self._session_clients: dict[str, set[SendCallback]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- engines ------------------------------------------------------------------

    def get_engine(
        self,
        session_id: str,
        *,
        workspace: str | None = None,
        agent: str = "code",
        approver: Approver | None = None,
        extra_tools: list[ToolFunction] | None = None,
        question_asker: QuestionAsker | None = None,
        **gates: Requester | None,
    ) -> TurnEngine:
        """Return the session's cached engine, or build one from what is saved.

        Args:
            gates: who asks at each gate, by the engine's attribute.
        """
        engine = self._engines.get(session_id)
        if engine is not None:
            engine.approver = approver or engine.approver
            engine.question_asker = question_asker or engine.question_asker
            _set_gates(engine, gates)
            return engine
        record = self.session_store.load(session_id)
        engine = self._build_engine(
            session_id,
            record or self._new_record(session_id, workspace, agent),
            approver or self.inbox_approver(session_id, agent),
            question_asker or self.inbox_question_asker(session_id, agent),
            extra_tools or [],
        )
        engine.directory_requester = self.inbox_directory_requester(session_id, agent)
        engine.plan_approver = self.inbox_plan_approver(session_id, agent)
        _set_gates(engine, gates)
        task = self.task_store.task_for_run_session(session_id)
        if task is not None:
            self._seed_task_permissions(engine, task)
        self._engines[session_id] = engine
        return engine

    def _new_record(self, session_id: str, workspace: str | None, agent: str) -> SessionRecord:
        place = Path(workspace or self.default_workspace or self._data_base / "scratch")
        place.mkdir(parents=True, exist_ok=True)
        return SessionRecord(session_id, str(place), self.model, self.mode.value, agent=agent)

    def _build_engine(
        self,
        session_id: str,
        record: SessionRecord,
        approver: Approver,
        question_asker: QuestionAsker | None,
        extra_tools: list[ToolFunction],
    ) -> TurnEngine:
        registry = ToolRegistry()
        registry.register_all([ASK_USER, *self.tools, *extra_tools])
        engine = TurnEngine(
            provider=self.provider,
            registry=registry,
            permissions=PermissionEngine(Path(record.workspace), Mode(record.mode)),
            model=record.model,
            approver=approver,
            messages=record.messages,
            audit_sink=self.audit_store.append,
            question_asker=question_asker,
        )
        engine.agent_name = record.agent
        engine.compaction_state = CompactionState.from_dict(record.compaction)
        context = {"session_id": session_id, "agent": record.agent, "workspace": record.workspace}
        engine.audit_context = dict(context)
        for name in record.grants.get("tools") or []:
            engine.permissions.allow_tool_for_session(str(name))
        return engine

    async def prepare_mcp_tools(
        self, session_id: str, *, workspace: str | None = None, agent: str = "code"
    ) -> list[ToolFunction]:
        """Connect the MCP servers and return their tools; none for an engine that is cached."""
        if session_id in self._engines:
            return []
        return [
            mcp_tool(server, func) for server, funcs in self.mcp_servers.items() for func in funcs
        ]

    async def resolve_inbox(self, item_id: str, resolution: str) -> bool:
        """Resolve an item; if no turn of its session runs, resume the one it blocked."""
        item = self.inbox.get(item_id)
        resolved = self.inbox.resolve(item_id, resolution)
        if resolved and item is not None and not self.is_running(item.session_id):
            await self._durable_resume(item)
        return resolved

    # -- driving turns ------------------------------------------------------------

    def mark_running(self, session_id: str) -> None:
        """Claim a session, taken or not."""
        self._running_sessions.add(session_id)

    def try_mark_running(self, session_id: str) -> bool:
        """Claim an idle session; False when a turn already runs."""
        if self.is_running(session_id):
            return False
        self.mark_running(session_id)
        return True

    def mark_idle(self, session_id: str) -> None:
        """Give a session up; after a promotion its engine is built anew."""
        self._running_sessions.discard(session_id)
        if session_id in self._promotion_rebuild:
            self._promotion_rebuild.discard(session_id)
            self._engines.pop(session_id, None)

    def is_running(self, session_id: str) -> bool:
        """Tell whether a turn of the session is claimed."""
        return session_id in self._running_sessions

    async def _durable_resume(self, item: InboxItem) -> None:
        if not item.tool_call_id:
            return
        engine = self.get_engine(item.session_id)
        self.mark_running(item.session_id)
        try:
            async for _event in engine.resume():
                pass
            self.save(item.session_id, engine)
        finally:
            self.mark_idle(item.session_id)

    async def deliver_to_session(
        self, session_id: str, message: str, *, source: dict[str, Any] | None = None
    ) -> None:
        """Run a background turn, or steer the one that runs; saved only at its end."""
        engine = self.get_engine(session_id)
        if not self.try_mark_running(session_id):
            engine.queue_steering(message, source)
            return
        try:
            async for event in engine.run(message, source=source):
                await self._broadcast_event_of(session_id, event)
            self.save(session_id, engine)
        except Exception as exc:
            logger.warning("background turn of %s: %s", session_id, type(exc).__name__)
            error = {"type": "error", "data": {"error": str(exc)}}
            await self.broadcast_session(session_id, error)
        finally:
            self.mark_idle(session_id)
            await self.broadcast_session(session_id, {"type": "turn_done", "data": {}})

    async def drive_attended(
        self, session_id: str, text: str | None = None, *, retry: bool = False
    ) -> bool:
        """Do what the host's web socket does with a message or the Retry button.

        Returns:
            False when a turn already runs, or when there is nothing to do.
        """
        engine = self.get_engine(
            session_id,
            approver=self._parking_approver(session_id, VIS_INLINE),
            extra_tools=await self.prepare_mcp_tools(session_id),
            question_asker=self._parking_asker(session_id, VIS_INLINE),
            directory_requester=self.inbox_directory_requester(session_id, "code", VIS_INLINE),
            plan_approver=self.inbox_plan_approver(session_id, "code", VIS_INLINE),
        )
        _set_gates(engine, self.window_gates(session_id, VIS_INLINE))
        if not (retry or text) or not self.try_mark_running(session_id):
            return False
        events = engine.retry() if retry else engine.run(text)
        try:
            await self._watch(session_id, engine, events)
        finally:
            self.mark_idle(session_id)
            self.save(session_id, engine)
            await self.broadcast_session(session_id, {"type": "turn_done", "data": {}})
        return True

    async def _watch(
        self, session_id: str, engine: TurnEngine, events: AsyncIterator[Event]
    ) -> None:
        async for event in events:
            await self._broadcast_event_of(session_id, event)
            if event.type.value in CHECKPOINTS:
                self.save(session_id, engine)

    # -- automations --------------------------------------------------------------

    def schedule(self, task: ScheduledTask) -> ScheduledTask:
        """Keep a task; it starts when its slot has come."""
        return self.task_store.save(task)

    def _build_task_engine(self, task: ScheduledTask, *, session_id: str) -> TurnEngine:
        Path(task.workspace).mkdir(parents=True, exist_ok=True)
        record = SessionRecord(
            session_id,
            task.workspace,
            task.model or self.model,
            Mode.INTERACTIVE.value,
            agent=task.agent,
        )
        approver = self._scheduled_approver(task, session_id)
        engine = self._build_engine(session_id, record, approver, None, [])
        self._seed_task_permissions(engine, task)
        return engine

    async def _run_scheduled_task(self, task: ScheduledTask, trigger: str) -> TaskRun:
        # Like the host, this never claims the run's session: see the tests.
        run = self.task_store.add_run(TaskRun(task.id, trigger=trigger))
        engine = self._build_task_engine(task, session_id=run.session_id)
        self._engines[run.session_id] = engine
        try:
            async for _event in engine.run(f"Scheduled run: {task.title}\n\n{task.instructions}"):
                pass
            run.status, run.result_text = "ok", last_text(engine.messages)
        except Exception as exc:
            run.status, run.error = "error", str(exc)
        finally:
            run.finished_at = time.time()
            self.save(run.session_id, engine)
            self.task_store.add_run(run)
        return run

    async def start_gateway(self) -> list[str]:
        """Start the scheduler, whose first tick catches up, then the message platforms."""
        self._loop = asyncio.get_running_loop()
        self.scheduler.start()
        self.gateway = self.gateway or Gateway()
        return []

    async def stop_gateway(self) -> None:
        """Stop the message platforms; the scheduler goes on, as in the host."""

    async def aclose(self) -> None:
        """Stop; only the audit store is closed, so that late turns can still be saved."""
        await self.scheduler.stop()
        await self.stop_gateway()
        self.audit_store.close()

    # -- sessions -----------------------------------------------------------------

    def save(self, session_id: str, engine: TurnEngine) -> None:
        """Save a session through the append-only store."""
        grants = sorted(engine.permissions.session_allow_tools)
        record = SessionRecord(
            session_id,
            str(engine.permissions.workspace_root),
            engine.model,
            engine.permissions.mode.value,
            messages=engine.messages,
            title=title_from(engine.messages),
            agent=engine.agent_name,
            grants={"tools": grants, "commands": []} if grants else {},
            compaction=engine.compaction_state.as_dict() if engine.compaction_state else {},
        )
        self.session_store.save(record)

    def persist_session(self, session_id: str) -> None:
        """Save the session's cached engine, if there is one."""
        engine = self._engines.get(session_id)
        if engine is not None:
            self.save(session_id, engine)

    def session_messages(self, session_id: str) -> list[Message]:
        """Return the live thread, or else the saved one."""
        engine = self._engines.get(session_id)
        if engine is not None:
            return list(engine.messages)
        record = self.session_store.load(session_id)
        return record.messages if record else []

    def list_sessions(self) -> list[dict[str, Any]]:
        """Return one row per session of a person."""
        records = [r for r in self.session_store.list() if not r.session_id.startswith("__")]
        return [self._session_row(record) for record in records]

    def _session_row(self, record: SessionRecord) -> dict[str, Any]:
        return {
            "session_id": record.session_id,
            "title": record.title or "New session",
            "workspace": record.workspace,
            "agent": record.agent,
            "model": record.model,
            "mode": record.mode,
            "updated_at": record.updated_at,
            "messages": record.message_count,
            "attention": len(self.inbox.pending(record.session_id)),
            "liveness": "working" if self.is_running(record.session_id) else "idle",
        }

    def delete_session(self, session_id: str) -> dict[str, Any]:
        """Stop a session, remove it, and close its inbox items."""
        if session_id.startswith("__"):
            return {"ok": False, "error": "internal session"}
        engine = self._engines.pop(session_id, None)
        if engine is not None:
            engine.request_interrupt()
        removed = self.session_store.delete(session_id)
        self.inbox.resolve_session(session_id)
        return {"ok": removed, "session_id": session_id}


def _set_gates(engine: TurnEngine, gates: Mapping[str, Requester | None]) -> None:
    for attribute, asker in gates.items():
        if asker is not None:
            setattr(engine, attribute, asker)
