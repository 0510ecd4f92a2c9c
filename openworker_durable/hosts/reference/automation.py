"""Scheduled tasks: their records, their store, and the loop that starts them."""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS scheduled_tasks (
    id TEXT PRIMARY KEY, enabled INTEGER NOT NULL, next_run REAL, data TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS task_runs (
    run_id TEXT PRIMARY KEY, task_id TEXT NOT NULL, started_at REAL NOT NULL, data TEXT NOT NULL
);
"""
_PREFIX = "__run__"


@dataclass
class ScheduledTask:
    """An automation; `next_run` (epoch seconds) is the slot that is due next.

    Args:
        every_seconds: distance of the slots; None for a task that runs once.
        always_allowed_tools: a tool name, or a tool name, one space and one recipient.
    """

    title: str
    instructions: str
    workspace: str
    agent: str = "cowork"
    id: str = field(default_factory=lambda: f"task-{uuid.uuid4().hex[:10]}")
    model: str | None = None
    always_allowed_tools: list[str] = field(default_factory=list)
    enabled: bool = True
    every_seconds: float | None = None
    next_run: float | None = None
    last_run: float | None = None
    last_status: str | None = None
    run_count: int = 0

    def standing_rules(self) -> dict[str, set[str]]:
        """Return the allowances that name a recipient."""
        rules: dict[str, set[str]] = {}
        for tool, _, target in (entry.partition(" ") for entry in self.always_allowed_tools):
            if target:
                rules.setdefault(tool, set()).add(target)
        return rules

    def name_allowed_tools(self) -> set[str]:
        """Return the allowances that hold for any recipient."""
        return {entry for entry in self.always_allowed_tools if " " not in entry}

    def advance(self, run: TaskRun, now: float) -> None:
        """Note a run, and move on to the first slot after `now`."""
        self.run_count += 1
        self.last_run, self.last_status = run.started_at, run.status
        if self.next_run is None or self.every_seconds is None:
            self.next_run = None
            return
        missed = max(0.0, now - self.next_run) // self.every_seconds
        self.next_run += (missed + 1) * self.every_seconds


@dataclass
class TaskRun:
    """One run of a task, with a session of its own."""

    task_id: str
    run_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex[:10]}")
    started_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    status: str = "running"
    result_text: str | None = None
    error: str | None = None
    trigger: str = "schedule"
    session_id: str = ""

    def __post_init__(self) -> None:
        self.session_id = self.session_id or f"{_PREFIX}{self.run_id}"


class TaskStore:
    """Tasks and runs as JSON in a small database."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._conn = sqlite3.connect(self.path, check_same_thread=False)
        weakref.finalize(self, self._conn.close)
        self._conn.executescript(_SCHEMA)

    def save(self, task: ScheduledTask) -> ScheduledTask:
        """Write a task."""
        values = (task.id, int(task.enabled), task.next_run, json.dumps(asdict(task)))
        self._write("INSERT OR REPLACE INTO scheduled_tasks VALUES (?, ?, ?, ?)", values)
        return task

    def get(self, task_id: str) -> ScheduledTask | None:
        """Return the task of that id."""
        found = self._read("SELECT data FROM scheduled_tasks WHERE id = ?", task_id)
        return ScheduledTask(**found[0]) if found else None

    def list(self) -> list[ScheduledTask]:
        """Return all tasks, the next due first."""
        found = self._read("SELECT data FROM scheduled_tasks ORDER BY next_run IS NULL, next_run")
        return [ScheduledTask(**raw) for raw in found]

    def due(self, *, now: float | None = None) -> builtins.list[ScheduledTask]:
        """Return the enabled tasks whose slot has come."""
        sql = "SELECT data FROM scheduled_tasks WHERE enabled AND next_run <= ? ORDER BY next_run"
        return [ScheduledTask(**raw) for raw in self._read(sql, now or time.time())]

    def add_run(self, run: TaskRun) -> TaskRun:
        """Write a run, replacing what was known of it."""
        values = (run.run_id, run.task_id, run.started_at, json.dumps(asdict(run)))
        self._write("INSERT OR REPLACE INTO task_runs VALUES (?, ?, ?, ?)", values)
        return run

    def runs(self, task_id: str) -> builtins.list[TaskRun]:
        """Return the runs of a task, newest first."""
        sql = "SELECT data FROM task_runs WHERE task_id = ? ORDER BY started_at DESC"
        return [TaskRun(**raw) for raw in self._read(sql, task_id)]

    def task_for_run_session(self, session_id: str) -> ScheduledTask | None:
        """Return the task whose run owns that session."""
        run_id = session_id.removeprefix(_PREFIX)
        found = self._read("SELECT data FROM task_runs WHERE run_id = ?", run_id)
        return self.get(found[0]["task_id"]) if found else None

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()

    def _write(self, sql: str, values: tuple[Any, ...]) -> None:
        with self._lock:
            self._conn.execute(sql, values)
            self._conn.commit()

    def _read(self, sql: str, *values: Any) -> builtins.list[dict[str, Any]]:
        with self._lock:
            return [json.loads(row[0]) for row in self._conn.execute(sql, values)]


Runner = Callable[[ScheduledTask, str], Awaitable[TaskRun]]


class Scheduler:
    """Starts due tasks: once for everything missed, then at every tick."""

    def __init__(self, store: TaskStore, runner: Runner, *, tick_seconds: float = 30.0) -> None:
        self.store = store
        self.runner = runner
        self.tick_seconds = tick_seconds
        self._task: asyncio.Task[None] | None = None
        self._running_ids: set[str] = set()
        self._under_way: set[asyncio.Task[TaskRun | None]] = set()
        self._caught_up = asyncio.Event()

    def start(self) -> None:
        """Begin in the background, with the catch-up tick."""
        if self._task is None:
            self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """Cancel the loop and every run it started."""
        tasks = [*self._under_way, *([self._task] if self._task else [])]
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Wait for the catch-up tick and the runs under way (for tests)."""
        await self._caught_up.wait()
        await asyncio.gather(*self._under_way)

    async def _loop(self) -> None:
        trigger = "catchup"
        while True:
            try:
                await self._tick(trigger=trigger)
            except Exception:
                logger.exception("tick failed")
            self._caught_up.set()
            trigger = "schedule"
            await asyncio.sleep(self.tick_seconds)

    async def _tick(self, *, trigger: str) -> None:
        for task in self.store.due():
            # Not awaited: a run that waits for a person must not hold up the others.
            run = asyncio.create_task(self.run_task(task, trigger=trigger))
            run.add_done_callback(self._under_way.discard)
            self._under_way.add(run)

    async def run_task(self, task: ScheduledTask, *, trigger: str) -> TaskRun | None:
        """Run a task unless it runs already; its slot moves on only afterwards."""
        if task.id in self._running_ids:
            return None
        self._running_ids.add(task.id)
        try:
            run = await self.runner(task, trigger)
        except Exception as exc:
            run = TaskRun(task.id, status="error", error=str(exc), trigger=trigger)
            self.store.add_run(run)
        finally:
            self._running_ids.discard(task.id)
        fresh = self.store.get(task.id)
        if fresh is not None:
            fresh.advance(run, time.time())
            self.store.save(fresh)
        return run
