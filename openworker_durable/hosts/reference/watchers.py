"""Who looks at a session while its turns run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .events import Event

SendCallback = Callable[[dict[str, Any]], Awaitable[None]]


class Watchers:
    """The live-view half of `SessionManager`, whose constructor sets the attribute."""

    _session_clients: dict[str, set[SendCallback]]

    def register_session_client(self, session_id: str, send_cb: SendCallback) -> None:
        """Send the session's events to `send_cb` as well."""
        self._session_clients.setdefault(session_id, set()).add(send_cb)

    def unregister_session_client(self, session_id: str, send_cb: SendCallback) -> None:
        """Stop sending to `send_cb`."""
        self._session_clients.get(session_id, set()).discard(send_cb)

    async def broadcast_session(self, session_id: str, message: dict[str, Any]) -> None:
        """Send to every watcher, and forget those that fail."""
        for send_cb in list(self._session_clients.get(session_id, ())):
            try:
                await send_cb(message)
            except Exception:
                self.unregister_session_client(session_id, send_cb)

    async def _broadcast_event_of(self, session_id: str, event: Event) -> None:
        message = {"type": event.type.value, "data": event.data}
        await self.broadcast_session(session_id, message)
