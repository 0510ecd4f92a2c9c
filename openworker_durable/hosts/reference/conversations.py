"""Sessions on disk: an index in SQLite, and one append-only JSONL file per thread."""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .providers import Message
from .sessions import SessionRecord

_CREATE = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY,
    workspace TEXT,
    model TEXT,
    mode TEXT,
    title TEXT,
    agent TEXT DEFAULT 'code',
    n_msgs INTEGER DEFAULT 0,
    messages TEXT,
    grants TEXT,
    compaction TEXT,
    updated_at TEXT DEFAULT CURRENT_TIMESTAMP
)
"""
_UPSERT = """
INSERT INTO sessions (session_id, workspace, model, mode, title, agent, n_msgs, grants, compaction)
VALUES (:session_id, :workspace, :model, :mode, :title, :agent, :n_msgs, :grants, :compaction)
ON CONFLICT (session_id) DO UPDATE SET
    workspace = excluded.workspace,
    model = excluded.model,
    mode = excluded.mode,
    title = COALESCE(sessions.title, excluded.title),
    agent = excluded.agent,
    n_msgs = excluded.n_msgs,
    messages = NULL,
    grants = excluded.grants,
    compaction = excluded.compaction,
    updated_at = CURRENT_TIMESTAMP
"""


def title_from(messages: Iterable[Message]) -> str:
    """Return the first line that the person wrote."""
    for message in messages:
        text = str(message.get("content") or "").strip()
        if message.get("role") == "user" and text:
            return text.splitlines()[0][:60]
    return "New session"


class ConversationStore:
    """Saves by appending what is new, and trusts that nothing before it changed."""

    def __init__(self, base_dir: str | Path) -> None:
        self.base = Path(base_dir).expanduser()
        self.conv_dir = self.base / "conversations"
        self.conv_dir.mkdir(parents=True, exist_ok=True)
        self.db_path = self.base / "coworker.db"
        self._lock = threading.RLock()
        self._conn = sqlite3.connect(self.db_path, check_same_thread=False)
        weakref.finalize(self, self._conn.close)
        self._conn.row_factory = sqlite3.Row
        self._conn.execute(_CREATE)
        self._conn.commit()

    def _file(self, sid: str) -> Path:
        return self.conv_dir / f"{sid}.jsonl"

    def _lines(self, sid: str) -> list[str]:
        path = self._file(sid)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [line for line in text.splitlines() if line.strip()]

    def _read_jsonl(self, sid: str) -> list[Message] | None:
        if not self._file(sid).exists():
            return None
        return [json.loads(line) for line in self._lines(sid)]

    def _count(self, sid: str) -> int:
        return len(self._lines(sid))

    def _append(self, sid: str, messages: list[Message]) -> None:
        self._write(sid, messages, "a")

    def _write(self, sid: str, messages: list[Message], file_mode: str) -> None:
        with open(self._file(sid), file_mode, encoding="utf-8") as file:
            for message in messages:
                file.write(json.dumps(message) + "\n")

    def save(self, record: SessionRecord) -> None:
        """Append the messages beyond those on disk; write a shorter thread anew."""
        sid = record.session_id
        with self._lock:
            count = self._count(sid)
            if len(record.messages) > count:
                self._append(sid, record.messages[count:])
            elif len(record.messages) < count:
                self._write(sid, record.messages, "w")
            self._conn.execute(_UPSERT, _values_of(record))
            self._conn.commit()

    def load(self, session_id: str) -> SessionRecord | None:
        """Return the session with its thread; a torn line raises."""
        row = self._row(session_id)
        if row is None:
            return None
        messages = self._read_jsonl(session_id)
        if messages is None:
            messages = json.loads(row["messages"] or "[]")
        return _record_of(row, messages, len(messages))

    def _row(self, session_id: str) -> sqlite3.Row | None:
        sql = "SELECT * FROM sessions WHERE session_id = ?"
        with self._lock:
            row: sqlite3.Row | None = self._conn.execute(sql, (session_id,)).fetchone()
        return row

    def delete(self, session_id: str) -> bool:
        """Remove a session and its thread; False when it has no row."""
        with self._lock:
            sql = "DELETE FROM sessions WHERE session_id = ?"
            removed = self._conn.execute(sql, (session_id,)).rowcount > 0
            self._conn.commit()
        self._file(session_id).unlink(missing_ok=True)
        return removed

    def list(self) -> list[SessionRecord]:
        """Return all sessions without their threads, last used first."""
        with self._lock:
            rows = self._conn.execute("SELECT * FROM sessions ORDER BY updated_at DESC").fetchall()
        return [_record_of(row, [], row["n_msgs"] or 0) for row in rows]

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()


def _values_of(record: SessionRecord) -> dict[str, Any]:
    return {
        "session_id": record.session_id,
        "workspace": record.workspace,
        "model": record.model,
        "mode": record.mode,
        "title": record.title or title_from(record.messages),
        "agent": record.agent,
        "n_msgs": len(record.messages),
        "grants": json.dumps(record.grants),
        "compaction": json.dumps(record.compaction),
    }


def _record_of(row: sqlite3.Row, messages: list[Message], count: int) -> SessionRecord:
    return SessionRecord(
        session_id=row["session_id"],
        workspace=row["workspace"],
        model=row["model"],
        mode=row["mode"],
        messages=messages,
        title=row["title"],
        agent=row["agent"] or "code",
        message_count=count,
        updated_at=row["updated_at"],
        grants=_json_object(row["grants"]),
        compaction=_json_object(row["compaction"]),
    )


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return dict(value) if isinstance(value, dict) else {}
