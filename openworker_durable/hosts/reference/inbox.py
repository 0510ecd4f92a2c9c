"""What sessions want from a person: one JSON file, rewritten in place, last writer wins."""

from __future__ import annotations

import asyncio
import builtins
import json
import threading
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

KIND_APPROVAL = "approval"
KIND_QUESTION = "question"
KIND_NOTIFICATION = "notification"
KIND_DIRECTORY = "directory"
KIND_PLAN = "plan"
KIND_TOOL = "tool"

STATE_PENDING = "pending"
STATE_RESOLVED = "resolved"

VIS_INLINE = "inline"
VIS_INBOX = "inbox"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def args_preview(arguments: dict[str, Any] | None, *, limit: int = 240) -> str:
    """Return arguments as one short line for a card."""
    shown = [f"{key}: {' '.join(str(value).split())}" for key, value in (arguments or {}).items()]
    line = ", ".join(part[:80] for part in shown)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


@dataclass
class InboxItem:
    """One thing to decide or to read; unknown fields are refused, extras belong in `data`."""

    id: str
    session_id: str
    kind: str
    title: str
    body: str = ""
    state: str = STATE_PENDING
    resolution: str | None = None
    inbox: str = "default"
    created_at: str = field(default_factory=_now)
    resolved_at: str | None = None
    visibility: str = VIS_INBOX
    tool_call_id: str | None = None
    options: list[Any] = field(default_factory=list)
    allow_text: bool = True
    multi: bool = False
    header: str = ""
    questions: list[dict[str, Any]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


class InboxStore:
    """All items of all sessions; without a path, in memory only."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else None
        self._lock = threading.Lock()
        self._items: dict[str, InboxItem] = {}
        self._waiters: dict[str, asyncio.Event] = {}
        self._load()

    def _load(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        raw_items = json.loads(self.path.read_text(encoding="utf-8")).get("items", [])
        items = [InboxItem(**raw) for raw in raw_items]
        self._items = {item.id: item for item in items}

    def _save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"items": [asdict(item) for item in self._items.values()]}
        self.path.write_text(json.dumps(content, indent=2), encoding="utf-8")

    def add(  # noqa: PLR0913 - the host's keywords
        self,
        session_id: str,
        kind: str,
        title: str,
        *,
        body: str = "",
        inbox: str = "default",
        visibility: str = VIS_INBOX,
        data: dict[str, Any] | None = None,
        options: builtins.list[Any] | None = None,
        allow_text: bool = True,
        multi: bool = False,
        header: str = "",
        questions: builtins.list[dict[str, Any]] | None = None,
        tool_call_id: str | None = None,
    ) -> InboxItem:
        """Add an item, or return the one that this call already has, even if it is resolved."""
        if tool_call_id:
            known = self.for_tool_call(session_id, tool_call_id)
            if known is not None:
                return known
        item = InboxItem(
            id=uuid.uuid4().hex,
            session_id=session_id,
            kind=kind,
            title=title,
            body=body,
            inbox=inbox,
            visibility=visibility,
            tool_call_id=tool_call_id,
            options=[*(options or [])],
            allow_text=allow_text,
            multi=multi,
            header=header,
            questions=[*(questions or [])],
            data=dict(data or {}),
        )
        with self._lock:
            self._items[item.id] = item
            self._save()
        return item

    def add_approval(self, session_id: str, title: str, **fields: Any) -> InboxItem:
        """Add a prompt for one call."""
        return self.add(session_id, KIND_APPROVAL, title, **fields)

    def add_question(self, session_id: str, title: str, **fields: Any) -> InboxItem:
        """Add a question of the model."""
        return self.add(session_id, KIND_QUESTION, title, **fields)

    def add_notification(self, session_id: str, title: str, **fields: Any) -> InboxItem:
        """Add something to read."""
        return self.add(session_id, KIND_NOTIFICATION, title, **fields)

    def for_tool_call(self, session_id: str, tool_call_id: str) -> InboxItem | None:
        """Return the oldest item of that call, whatever its state."""
        for item in self._items.values():
            if (item.session_id, item.tool_call_id) == (session_id, tool_call_id):
                return item
        return None

    def get(self, item_id: str) -> InboxItem | None:
        """Return the item of that id."""
        return self._items.get(item_id)

    def list(
        self,
        *,
        session_id: str | None = None,
        state: str | None = None,
        inbox: str | None = None,
        visibility: str | None = None,
    ) -> builtins.list[InboxItem]:
        """Return the items that match, oldest first."""
        wanted = {
            "session_id": session_id,
            "state": state,
            "inbox": inbox,
            "visibility": visibility,
        }
        tests = {name: value for name, value in wanted.items() if value is not None}
        found = [i for i in self._items.values() if tests.items() <= _keys_of(i).items()]
        return sorted(found, key=lambda item: item.created_at)

    def pending(self, session_id: str | None = None) -> builtins.list[InboxItem]:
        """Return what still waits for a person, oldest first."""
        return self.list(session_id=session_id, state=STATE_PENDING)

    def resolve(self, item_id: str, resolution: str) -> bool:
        """Give an item its one resolution; False when it is unknown or has one already."""
        with self._lock:
            item = self._items.get(item_id)
            if item is None or item.state == STATE_RESOLVED:
                return False
            item.state, item.resolution, item.resolved_at = STATE_RESOLVED, resolution, _now()
            self._save()
        if item_id in self._waiters:
            self._waiters[item_id].set()
        return True

    def resolve_session(self, session_id: str, resolution: str = "session deleted") -> int:
        """Close every pending item of a session; return how many."""
        return sum(self.resolve(item.id, resolution) for item in self.pending(session_id))

    async def wait(self, item_id: str) -> str:
        """Return the resolution, as soon as there is one."""
        item = self._items.get(item_id)
        if item is None or item.state != STATE_RESOLVED:
            await self._waiters.setdefault(item_id, asyncio.Event()).wait()
            item = self._items.get(item_id)
        return (item.resolution if item else "") or ""


def _keys_of(item: InboxItem) -> dict[str, str]:
    return {
        "session_id": item.session_id,
        "state": item.state,
        "inbox": item.inbox,
        "visibility": item.visibility,
    }
