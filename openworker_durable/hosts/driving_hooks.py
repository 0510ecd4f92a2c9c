"""What the adapter wraps around turns that no person drives: deliveries and scheduled runs.

A session is claimed before anything is awaited, its MCP tools are connected before its engine
is built (C31), and an automation's run carries its occurrence, so that a slot that was cut
off and is run again asks instead of doing the same again.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .binding import binding_of
from .manager_hooks import bind, runtime_of
from .patching import Patches
from .slots import slot

log = logging.getLogger("openworker_durable")

_run: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "openworker_durable_run", default=None
)
"""Sessions of the scheduled run under way."""

WAITS = "stopped at a call whose outcome is unknown; a person has been asked"
"""What a scheduled run that halted is reported with, instead of as done."""


class DrivingHooks:
    """Builds the wrappers for one host."""

    def attach(self, patches: Patches, manager: type) -> None:
        """Wrap the manager's methods."""
        patches.wrap(manager, "deliver_to_session", self.deliver)
        patches.wrap(manager, "_build_task_engine", self.build_task_engine)
        patches.wrap(manager, "_run_scheduled_task", self.run_scheduled_task)

    def deliver(self, host: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        """Connect the session's tools first; whoever comes meanwhile waits for that."""

        async def deliver_to_session(
            manager: Any, session_id: str, message: str, **more: Any
        ) -> None:
            runtime = runtime_of(manager)
            if runtime is not None and not await runtime.opening.ready(session_id):
                log.warning("session %s was deleted before its message came", session_id)
                return
            await host(manager, session_id, message, **more)

        return deliver_to_session

    def build_task_engine(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Bind a scheduled run's engine to its session and its slot, and claim the session."""

        def _build_task_engine(manager: Any, task: Any, *, session_id: str) -> Any:
            engine = host(manager, task, session_id=session_id)
            runtime = runtime_of(manager)
            if runtime is None or engine is None:
                return engine
            bind(runtime, manager, engine, session_id).occurrence = slot(task)
            sessions = _run.get()
            if sessions is not None:
                sessions.append(session_id)
                manager.mark_running(session_id)
            return engine

        return _build_task_engine

    def run_scheduled_task(self, host: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """Keep the run's session claimed while it runs; a run that halted is not reported done."""

        async def _run_scheduled_task(manager: Any, task: Any, trigger: str) -> Any:
            runtime = runtime_of(manager)
            if runtime is None:
                return await host(manager, task, trigger)
            sessions: list[str] = []
            token = _run.set(sessions)
            try:
                run = await host(manager, task, trigger)
                _report(manager, run)
                return run
            finally:
                _run.reset(token)
                for session_id in sessions:
                    manager._running_sessions.discard(session_id)
                    runtime.turn_ended(session_id)

        return _run_scheduled_task


def _report(manager: Any, run: Any) -> None:
    """Say of a run that halted at an unknown outcome that it waits for a person (G12)."""
    binding = binding_of(manager._engines.get(run.session_id))
    if binding is not None and binding.halted and run.status == "ok":
        run.status, run.error = "error", WAITS
        manager.task_store.add_run(run)
