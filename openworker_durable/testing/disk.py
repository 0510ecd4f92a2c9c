"""Reading a state folder from outside, as it is on disk, whatever the plugin says of itself."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from .. import rows, thread
from ..hosts.files import read_json_tolerant
from ..hosts.items import ALLOWING
from ..ledger import DATABASE, Ledger
from ..thread import Message
from .outcome import ANSWERS, Outcome

_APPROVED = """
SELECT tool_call_id FROM audit_events
WHERE session_id = ? AND stage = 'approval_resolved' AND status = 'approved'
"""


def fill(outcome: Outcome) -> None:
    """Put into an outcome what its state folder holds of its session."""
    state, session = outcome.scenario.state_dir, outcome.scenario.session
    outcome.thread = saved_thread(state / "conversations" / f"{session}.jsonl")
    items = read_object(state / "inbox.json").get("items", [])
    outcome.items = [i for i in items if i.get("session_id") == session]
    outcome.allowed = frozenset(_allowed_items(outcome.items)) | _noted(state, session)
    if (state / DATABASE).is_file():
        outcome.allowed |= _audited(state / DATABASE, session)
        _fill_rows(outcome, state / DATABASE)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty when there is none that can be read."""
    found = read_json_tolerant(path) if path.exists() else None
    return found if isinstance(found, dict) else {}


def saved_thread(path: Path) -> list[Message]:
    """Return a saved conversation; lines that cannot be read are left out."""
    messages: list[Message] = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
    return messages


def _noted(state: Path, session: str) -> frozenset[str]:
    """Return the calls that the scripted person says they allowed."""
    path = state / ANSWERS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return frozenset(
        str(a["call"]) for a in found if a["session"] == session and a["word"] in ALLOWING
    )


def _allowed_items(items: list[dict[str, Any]]) -> set[str]:
    """Return the calls of the approvals that were answered with a word that allows."""
    allowed = set()
    for item in items:
        if item.get("kind") == "approval" and item.get("resolution") in ALLOWING:
            voided = (item.get("data") or {}).get(thread.MARK) or {}
            allowed.add(str(item.get("tool_call_id") or voided.get("tool_call_id")))
    return allowed


def _audited(path: Path, session: str) -> frozenset[str]:
    """Return the calls of which the host's own audit says that a person approved them.

    Opened for writing: a kill inside a transaction may leave a journal that only a writer can
    roll back.
    """
    with contextlib.closing(sqlite3.connect(path)) as conn:
        try:
            found = conn.execute(_APPROVED, (session,)).fetchall()
        except sqlite3.OperationalError:  # no such table or column: the host alone
            return frozenset()
    return frozenset(str(row[0]) for row in found if row[0])


def _fill_rows(outcome: Outcome, path: Path) -> None:
    session = outcome.scenario.session
    with contextlib.closing(Ledger(path)) as ledger:
        found = [r for r in ledger.known(rows.all_rows(100_000)) if r.session_id == session]
        living = bool(ledger.known(rows.session(session)))
    outcome.rows = sorted(found, key=lambda r: (r.dispatched_at, r.attempt))
    outcome.deleted = bool(found) and not living
