"""What the adapter wraps so that recovery items can be seen and answered in today's surfaces.

The host's own listing (the one query that names a visibility) gets recovery items served as
questions with their decisions as buttons. It loads each item's session: one that cannot be
read, or was deleted while a call was unknown, is listed all the same (C22, C30).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .items import recovery_of, served
from .manager_hooks import runtime_of
from .patching import Patches

_listed: contextvars.ContextVar[list[tuple[str, bool]] | None] = contextvars.ContextVar(
    "openworker_durable_listed", default=None
)
"""Sessions, and whether for a recovery item, that the listing under way will load, in order."""


@dataclass(frozen=True)
class Shown:
    """What a listing may know of a session that cannot be loaded; never a conversation."""

    title: str
    agent: str | None = None
    workspace: str | None = None


class ListingHooks:
    """Builds the wrappers for one host."""

    def attach(self, patches: Patches, inbox: type, conversations: type, manager: type) -> None:
        """Wrap the listing's two reads; an engine is never built from what a listing is shown."""
        patches.wrap(inbox, "list", self.list)
        patches.wrap(conversations, "load", self.load)
        patches.wrap(manager, "get_engine", self.get_engine)

    def get_engine(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """No listing goes on where an engine is asked for."""

        def get_engine(manager: Any, *args: Any, **kwargs: Any) -> Any:
            _listed.set(None)
            return host(manager, *args, **kwargs)

        return get_engine

    def list(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Serve recovery items as questions to whoever asks by visibility."""

        def list_items(inbox: Any, **wanted: Any) -> Any:
            items = host(inbox, **wanted)
            if runtime_of(inbox) is None or "visibility" not in wanted:
                return items
            _listed.set([(i.session_id, bool(recovery_of(i))) for i in items])
            return [served(i) for i in items]

        return list_items

    def load(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Let a listing go on past a session that cannot be loaded."""

        def load(store: Any, session_id: str) -> Any:
            for_recovery = _take(session_id) if runtime_of(store) is not None else None
            try:
                record = host(store, session_id)
            except (OSError, ValueError):
                if for_recovery is None:
                    raise
                return Shown(f"{session_id} (its conversation cannot be read)")
            return Shown("(deleted)") if record is None and for_recovery else record

        return load


def _take(session_id: str) -> bool | None:
    """Say whether the listing under way loads this session next, and for a recovery item."""
    waiting = _listed.get()
    if not waiting or waiting[0][0] != session_id:
        return None
    return waiting.pop(0)[1]
