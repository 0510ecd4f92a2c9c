"""What is kept of one session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class SessionRecord:
    """One session: its settings, its grants and its thread."""

    session_id: str
    workspace: str
    model: str
    mode: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    title: str | None = None
    agent: str = "code"
    message_count: int = 0
    updated_at: str | None = None
    grants: dict[str, Any] = field(default_factory=dict)
    compaction: dict[str, Any] = field(default_factory=dict)
