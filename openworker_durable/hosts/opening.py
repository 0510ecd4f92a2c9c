"""Engines with their MCP tools: connected before an engine is built, or added to a cached one.

The host builds an engine from whatever tools it is handed, and caches it; only its web socket
connects the session's MCP servers first. Here every other way does so too (C31).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger("openworker_durable")

CONNECT_SECONDS = 30.0
"""How long a session waits for its MCP servers."""


class Opening:
    """Opens sessions of one manager; each at most once at a time.

    Args:
        manager: the host's session manager.
        patience: seconds that connecting may take before the session goes on without.
    """

    def __init__(self, manager: Any, patience: float = CONNECT_SECONDS) -> None:
        self.manager = manager
        self.patience = patience
        self._connecting: set[asyncio.Future[Any]] = set()
        self._stuck: set[asyncio.Future[Any]] = set()
        self.parked: dict[str, Any] = {}
        self.deletions: dict[str, int] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}

    async def engine(self, session_id: str) -> Any:
        """Return the session's engine, its tools connected; the caller has claimed the session.

        Returns:
            None when it cannot be had.
        """
        manager = self.manager
        try:
            agent = self._agent(session_id)
            lives = self.deletions.get(session_id, 0)
            tools = [] if session_id in manager._engines else await self._tools(session_id, agent)
            if lives != self.deletions.get(session_id, 0):
                return None  # deleted while its tools were fetched
            return manager.get_engine(session_id, agent=agent, extra_tools=tools or None)
        except Exception as exc:
            log.warning("session %s cannot be opened (%s)", session_id, type(exc).__name__)
            return None

    async def ready(self, session_id: str) -> bool:
        """Have the session's engine built with its tools; claims it while it waits for them.

        Returns with the claim given back, and nothing awaited since, so that the caller's own
        claim comes first.

        Returns:
            False when the session was deleted meanwhile.
        """
        manager = self.manager
        while session_id in self._opening:
            await asyncio.shield(self._opening[session_id])
        if session_id in manager._engines or not manager.try_mark_running(session_id):
            return True
        lives = self.deletions.get(session_id, 0)
        done = self._opening[session_id] = asyncio.get_running_loop().create_future()
        try:
            await self.engine(session_id)
        finally:
            manager._running_sessions.discard(session_id)
            del self._opening[session_id]
            done.set_result(None)
        return lives == self.deletions.get(session_id, 0)

    async def connect(self, session_id: str, names: set[str]) -> set[str]:
        """Add tools that a cached engine lacks, as far as their servers can be reached.

        Args:
            names: tools that are wanted.

        Returns:
            those it still lacks.
        """
        engine = self.manager._engines.get(session_id)
        if engine is None:
            return names
        if lacking(engine, names):
            for tool in await self._tools_beside(session_id, engine):
                if engine.registry.get(getattr(tool, "__name__", "")) is None:
                    engine.registry.register(tool)
            box = getattr(getattr(engine, "_durable", None), "toolbox", None)
            if box is not None:
                box.freeze(engine.registry.names())
        return lacking(engine, names)

    async def _tools_beside(self, session_id: str, engine: Any) -> list[Any]:
        """Connect the tools of a session whose engine is cached: the host would not look again."""
        manager = self.manager
        self.parked[session_id] = engine
        try:
            manager._engines.pop(session_id, None)
            return await self._tools(session_id, str(getattr(engine, "agent_name", "code")))
        finally:
            if self.parked.pop(session_id, None) is not None:  # not deleted meanwhile
                manager._engines[session_id] = engine

    async def _tools(self, session_id: str, agent: str) -> list[Any]:
        """Connect, for a while: a server that never answers must not hold the session for ever."""
        if any(not task.done() for task in self._stuck):
            return []  # it still does not answer; nobody waits for it a second time
        task = asyncio.ensure_future(self.manager.prepare_mcp_tools(session_id, agent=agent))
        self._connecting.add(task)
        task.add_done_callback(self._connected)
        await asyncio.wait({task}, timeout=self.patience)
        if not task.done():  # left alone: cancelling it could leave half a connection behind
            log.warning("session %s: its MCP servers do not answer; it goes on", session_id)
            self._stuck = {task}
            return []
        try:
            return list(task.result() or [])
        except Exception as exc:  # settings that cannot be read, for one
            log.warning("session %s: no MCP tools (%s)", session_id, type(exc).__name__)
            return []

    def _connected(self, task: asyncio.Future[Any]) -> None:
        self._connecting.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; if nobody did, it is no news

    def _agent(self, session_id: str) -> str:
        """Return the persona the session was saved with, from the index alone."""
        store = self.manager.session_store
        with store._lock:
            row = store._conn.execute(
                "SELECT agent FROM sessions WHERE session_id = ?", (session_id,)
            ).fetchone()
        return str(row[0]) if row is not None and row[0] else "code"


def lacking(engine: Any, names: set[str]) -> set[str]:
    """Return the tools among `names` that an engine does not have."""
    return {name for name in names if engine.registry.get(name) is None}
