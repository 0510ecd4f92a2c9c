"""What the adapter wraps around a host's session manager: identity, start-up, decisions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .. import rows, verbs
from ..errors import LedgerError
from ..retention import Retention
from .binding import Binding, binding_of
from .items import recovery_of
from .patching import Patches
from .runtime import Runtime, runtime_for
from .slots import occurrence_of_run
from .threads import look

log = logging.getLogger("openworker_durable")
RUN = "__run__"
"""How the ids of an automation's run sessions begin."""


def runtime_of(thing: Any) -> Runtime | None:
    """Return the runtime of a manager or store, or None when it has none."""
    found = getattr(thing, "_durable_runtime", None)
    return found if isinstance(found, Runtime) else None


class ManagerHooks:
    """Builds the wrappers for one host."""

    def __init__(
        self, names: Any, failpoint: Any, retention: Retention, runtimes: list[Runtime]
    ) -> None:
        self.names, self.failpoint, self.runtimes = names, failpoint, runtimes
        self.retention = retention

    def attach(self, patches: Patches, manager: type) -> None:
        """Wrap the manager's methods."""
        for method, make in (
            ("__init__", self.init),
            ("get_engine", self.get_engine),
            ("resolve_inbox", self.resolve_inbox),
            ("_durable_resume", self.durable_resume),
            ("mark_idle", self.mark_idle),
            ("delete_session", self.delete_session),
            ("start_gateway", self.start_gateway),
            ("aclose", self.aclose),
        ):
            patches.wrap(manager, method, make)

    def init(self, host: Callable[..., None]) -> Callable[..., None]:
        """Give the manager its runtime, and its stores with it."""

        def __init__(manager: Any, *args: Any, **kwargs: Any) -> None:
            host(manager, *args, **kwargs)
            state_dir = Path(manager.session_store.db_path).parent
            runtime = runtime_for(state_dir, self.names, self.failpoint, self.retention)
            runtime.manager = manager
            if runtime not in self.runtimes:
                self.runtimes.append(runtime)
            for thing in (manager, manager.inbox, manager.session_store, manager.audit_store):
                thing._durable_runtime = runtime
            manager.session_store._durable_manager = manager

        return __init__

    def get_engine(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Mend the saved thread before it is loaded, and bind the engine to its session."""

        def get_engine(manager: Any, session_id: str, *args: Any, **kwargs: Any) -> Any:
            runtime = runtime_of(manager)
            if runtime is None:
                return host(manager, session_id, *args, **kwargs)
            if session_id in runtime.opening.parked:
                manager._engines.setdefault(session_id, runtime.opening.parked[session_id])
            known = session_id in manager._engines
            if not known:
                runtime.mend(manager, session_id)
            seen = look(manager.session_store._file(session_id))
            engine = host(manager, session_id, *args, **kwargs)
            if engine is None:
                return None
            binding = bind(runtime, manager, engine, session_id)
            if not known:
                _fill(manager, engine, session_id)
                binding.seen = seen  # what another process saves from here on is not in it
            binding.occurrence = binding.occurrence or _occurrence(runtime, manager, session_id)
            return engine

        return get_engine

    def resolve_inbox(self, host: Callable[..., Awaitable[bool]]) -> Callable[..., Any]:
        """A decision on a recovery item resumes its halted session, after whoever made it is told.

        The turn that goes on may wait for the next prompt; the answer to this one must not.
        """

        async def resolve_inbox(manager: Any, item_id: str, resolution: str) -> bool:
            runtime = runtime_of(manager)
            item = manager.inbox.get(item_id)
            if runtime is None or not recovery_of(item):
                return await host(manager, item_id, resolution)
            # In a thread: a locked database must not hold up the event loop.
            resolved = bool(await asyncio.to_thread(manager.inbox.resolve, item_id, resolution))
            if resolved and not manager.is_running(item.session_id):
                runtime.spawn(runtime.drive_settled, item.session_id)
            return resolved

        return resolve_inbox

    def durable_resume(self, host: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        """Claim the session before the first await, so that two approvals resume it once."""

        async def _durable_resume(manager: Any, item: Any) -> None:
            runtime = runtime_of(manager)
            if runtime is None:
                await host(manager, item)
            elif getattr(item, "tool_call_id", None) and not runtime.owner.holds(item.session_id):
                await runtime.drive(item.session_id)

        return _durable_resume

    def mark_idle(self, host: Callable[..., None]) -> Callable[..., None]:
        """A turn has ended: take up what was approved or decided meanwhile."""

        def mark_idle(manager: Any, session_id: str) -> None:
            host(manager, session_id)
            runtime = runtime_of(manager)
            if runtime is not None:
                runtime.turn_ended(session_id)

        return mark_idle

    def delete_session(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """A deleted session leaves a tombstone; its unknown calls can still be settled."""

        def delete_session(manager: Any, session_id: str) -> Any:
            runtime = runtime_of(manager)
            if runtime is None:
                return host(manager, session_id)
            engine = manager._engines.get(session_id)
            runtime.let_die(session_id)
            done = {}
            try:
                done = host(manager, session_id)
            finally:
                if not done.get("ok") and session_id in manager._engines:
                    runtime.let_live(session_id)  # the host would not: an internal one, or a fault
                else:
                    _withdraw(engine)
            if done.get("ok"):
                try:
                    runtime.ledger.run(verbs.tombstone, session_id, runtime.clock())
                except LedgerError as exc:
                    log.warning("session %s: its tombstone comes later (%s)", session_id, exc)
                    runtime.ledger.defer(verbs.tombstone, session_id, runtime.clock())
                runtime.ask_without_retry(session_id)
            return done

        return delete_session

    def start_gateway(self, host: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        """The start-up sweep ends before the scheduler and the message gateway start."""

        async def start_gateway(manager: Any) -> Any:
            runtime = runtime_of(manager)
            if runtime is None:
                return await host(manager)
            await runtime.sweep_or_later()
            runtime.watch()
            started = await host(manager)
            runtime.mirror_waiting()
            return started

        return start_gateway

    def aclose(self, host: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        """Close the ledger with the host."""

        async def aclose(manager: Any) -> None:
            await host(manager)
            runtime = runtime_of(manager)
            if runtime is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    await runtime.aclose()

        return aclose


def _fill(manager: Any, engine: Any, session_id: str) -> None:
    """Give an engine its saved thread where the host's index has lost the row that leads to it.

    The index may come late, or not at all after a kill; an empty engine would overwrite the file.
    """
    store = manager.session_store
    if any(m.get("role") != "system" for m in engine.messages):
        return
    with contextlib.suppress(OSError, ValueError):
        saved = store._read_jsonl(session_id) or []
        if len(saved) > len(engine.messages):
            engine.messages[:] = saved


def _withdraw(engine: Any) -> None:
    """What was allowed in an engine that is gone, and has not started, is taken back."""
    binding = binding_of(engine)
    if binding is not None:
        binding.withdraw()


def _occurrence(runtime: Runtime, manager: Any, session_id: str) -> str:
    """Return what an automation's run, whose engine is rebuilt, was started for."""
    if not session_id.startswith(RUN):
        return ""
    with contextlib.suppress(LedgerError):
        known = runtime.ledger.first(rows.occurrence_of(session_id))
        if known:
            return known
    return occurrence_of_run(manager, session_id, runtime.ledger)


def bind(runtime: Runtime, manager: Any, engine: Any, session_id: str) -> Binding:
    """Tie an engine to its session; the same engine keeps its binding."""
    found = binding_of(engine)
    if found is not None and found.runtime is runtime:
        return found
    agent = str(getattr(engine, "agent_name", "code") or "code")
    binding = Binding(runtime, manager, engine, session_id, agent=agent)
    engine._durable = binding
    runtime.deleted.discard(session_id)
    binding.remember_file()
    return binding
