"""Single inbox items: what their answers amount to, and changes to one, each saved at once.

A host stores our recovery items as `recovery_required`; where its surfaces only know how to
show a question with options as buttons, they are served as one (`served`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from .. import review, thread
from ..recovery import Approval

ALLOWING = frozenset(
    {
        "allow", "once", "always", "always_tool", "always_command", "always_task",
        "readonly_session",
    }
)  # fmt: skip
"""Resolutions that authorise; every other word, and every other spelling, denies."""

APPROVAL = "approval"
GATES = {"plan": "approved", "tool": "approved", "directory": "granted"}
"""Kinds of prompts whose answer is JSON, and the key that says yes."""

ASKED = frozenset({APPROVAL, *GATES})
"""Kinds of prompts that one call waits for."""

PENDING = "pending"
RESOLVED = "resolved"
VOID = "void"


def stamp_of(item: Any) -> dict[str, Any]:
    """Return our note on an inbox item, empty when it has none."""
    data = getattr(item, "data", None)
    note = data.get(thread.MARK) if isinstance(data, dict) else None
    return note if isinstance(note, dict) else {}


def recovery_of(item: Any) -> dict[str, Any]:
    """Return the correlation ids of a recovery item, empty for any other item."""
    if getattr(item, "kind", "") != review.KIND:
        return {}
    data = getattr(item, "data", None)
    found = data.get("recovery") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def answer_of(item: Any) -> dict[str, Any]:
    """Return the JSON answer to a gate's prompt, empty for anything else."""
    try:
        value = json.loads(item.resolution or "")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def allows(item: Any) -> bool:
    """Say whether a resolved prompt authorises: an exact word, or a gate's yes."""
    if item.kind in GATES:
        return answer_of(item).get(GATES[item.kind]) is True
    return item.resolution in ALLOWING


def prompt_state(item: Any) -> Approval:
    """Say what an approval item's resolution amounts to."""
    if item.state == PENDING:
        return Approval.PENDING
    if not allows(item):
        return Approval.REFUSED
    return Approval.ALLOWED if stamp_of(item).get("witnessed") else Approval.UNWITNESSED


# -- single changes to inbox items, each saved at once
def stamp(inbox: Any, item: Any, **facts: Any) -> None:
    """Add facts to our note on an item and save."""
    with inbox._lock:
        item.data[thread.MARK] = {**stamp_of(item), **facts}
        inbox._save()


def close(inbox: Any, item: Any, resolution: str) -> None:
    """Resolve an item as the plugin's own act, whatever its kind, and wake who waits for it."""
    with inbox._lock:
        item.state = RESOLVED
        item.resolution = resolution
        item.resolved_at = datetime.now(timezone.utc).isoformat()
        inbox._save()
    waiter = inbox._waiters.get(item.id)
    if waiter is not None:
        waiter.set()


def void(inbox: Any, item: Any, why: str) -> None:
    """Take an item out of use: its call id is free again and no answer to it counts."""
    with inbox._lock:
        note = {**stamp_of(item), VOID: why, "tool_call_id": item.tool_call_id}
        item.data[thread.MARK] = note
        item.tool_call_id = None
        if item.state == PENDING:
            item.state = RESOLVED
            item.resolution = VOID
            item.resolved_at = datetime.now(timezone.utc).isoformat()
            item.body = f"{item.body}\n(No longer needed: {why}.)".strip()
        inbox._save()
    waiter = inbox._waiters.get(item.id)
    if waiter is not None:
        waiter.set()


def served(item: Any) -> Any:
    """Return an item as the host's surfaces can show it: a recovery item becomes a question.

    The stored item stays what it is; `data.recovery` is in both.
    """
    if item.kind != review.KIND or not item.options:
        return item
    return replace(item, kind="question", allow_text=False, header=review.HEADER)
