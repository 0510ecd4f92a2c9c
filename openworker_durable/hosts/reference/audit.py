"""A log of every step of every call, in the host's database."""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import Any

_SECRET_WORDS = ("token", "secret", "password", "api_key", "raw")
_BODY_WORDS = ("body", "content", "html")
_COLUMNS = (
    "session_id",
    "agent",
    "workspace",
    "connector",
    "tool",
    "stage",
    "status",
    "approval",
    "args",
    "result_preview",
    "reason",
    "resource",
)
_CREATE = (
    "CREATE TABLE IF NOT EXISTS audit_events ("
    "id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT DEFAULT CURRENT_TIMESTAMP, "
    + ", ".join(f"{name} TEXT" for name in _COLUMNS)
    + ")"
)
_INSERT = (
    f"INSERT INTO audit_events ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(':' + name for name in _COLUMNS)})"
)

AuditRow = dict[str, Any]


class AuditStore:
    """Appends one committed row per event, on a connection of its own."""

    def __init__(self, db_path: str | Path) -> None:
        self.db_path = Path(db_path).expanduser()
        self._lock = threading.RLock()
        self._conn = sqlite3.connect(self.db_path, check_same_thread=False)
        # Closes a store that nobody closed; late writers may still use one that somebody keeps.
        weakref.finalize(self, self._conn.close)
        self._conn.row_factory = sqlite3.Row
        self._conn.execute(_CREATE)
        self._conn.commit()

    def append(self, event: dict[str, Any]) -> None:
        """Write one event, without secrets and message bodies."""
        row = _row_of(event)
        with self._lock:
            self._conn.execute(_INSERT, row)
            self._conn.commit()

    def list(
        self, *, limit: int = 100, session_id: str | None = None, tool: str | None = None
    ) -> list[AuditRow]:
        """Return the newest events first."""
        filters = {"session_id": session_id, "tool": tool}
        used = {name: value for name, value in filters.items() if value}
        where = " AND ".join(["1 = 1", *(f"{name} = :{name}" for name in used)])
        sql = f"SELECT * FROM audit_events WHERE {where} ORDER BY id DESC LIMIT :most"
        with self._lock:
            rows = self._conn.execute(sql, {**used, "most": limit}).fetchall()
        return [{**dict(row), "args": json.loads(row["args"] or "{}")} for row in rows]

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()


def _row_of(event: dict[str, Any]) -> dict[str, str]:
    row = {name: str(event.get(name) or "") for name in _COLUMNS}
    row["tool"] = row["tool"] or str(event.get("tool_name") or "")
    row["args"] = json.dumps(_hide(event.get("arguments") or {}), default=str)
    for name in ("result_preview", "reason", "resource"):
        row[name] = _cut(row[name])
    return row


def _hide(value: Any, key: str = "") -> Any:
    name = key.lower()
    if any(word in name for word in _SECRET_WORDS) or name.endswith(_BODY_WORDS):
        return "[hidden]"
    if isinstance(value, dict):
        return {str(k): _hide(v, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_hide(part) for part in value]
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str, longest: int = 500) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
