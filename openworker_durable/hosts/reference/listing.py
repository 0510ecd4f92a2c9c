"""What the host's server answers to `GET /v1/inbox`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .inbox import STATE_PENDING, VIS_INBOX
from .manager import SessionManager


def inbox_listing(
    manager: SessionManager, session_id: str = "", state: str = ""
) -> list[dict[str, Any]]:
    """Return items with what is known of their sessions; one that cannot be loaded stops it all.

    Args:
        session_id: only this session's, those shown in its window included.
        state: only those in this state.
    """
    items = manager.inbox.list(
        session_id=session_id or None,
        state=state or None,
        visibility=None if session_id else VIS_INBOX,
    )
    listed = []
    for item in items:
        record = manager.session_store.load(item.session_id)
        gone = record is None and item.session_id not in manager._engines
        if gone and not session_id and item.state == STATE_PENDING:
            manager.inbox.resolve_session(item.session_id)
            continue
        about = {"session_title": record.title if record else None, "session_exists": bool(record)}
        listed.append({**asdict(item), **about})
    return listed
