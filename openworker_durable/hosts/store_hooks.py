"""What the adapter wraps around a host's stores: inbox, audit table, saved threads."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from .. import review, thread
from .._db import AUDIT_COLUMNS
from .files import read_json_tolerant, set_aside, write_atomic, write_thread
from .items import ASKED, prompt_state, stamp_of, void
from .manager_hooks import runtime_of
from .patching import Patches

_ids = threading.local()

TRIGGER = """
CREATE TEMP TRIGGER IF NOT EXISTS durable_audit_ids AFTER INSERT ON main.audit_events
WHEN durable_id('execution_id') IS NOT NULL
BEGIN
    UPDATE audit_events SET tool_call_id = durable_id('tool_call_id'),
        execution_id = durable_id('execution_id'), attempt = durable_id('attempt'),
        recovery_decision = durable_id('recovery_decision')
    WHERE id = NEW.id;
END
"""


class StoreHooks:
    """Builds the wrappers for one host."""

    def __init__(self, item: type) -> None:
        self.item = item

    def attach(self, patches: Patches, inbox: type, audit: type, conversations: type) -> None:
        """Wrap the stores' methods."""
        patches.wrap(inbox, "add", self.add)
        patches.wrap(inbox, "resolve", self.resolve)
        patches.wrap(inbox, "pending", self.pending)
        patches.wrap(inbox, "_save", self.save_inbox)
        patches.wrap(inbox, "_load", self.load_inbox)
        patches.wrap(audit, "__init__", self.audit_init)
        patches.wrap(audit, "append", self.audit_append)
        patches.wrap(conversations, "save", self.save_thread)

    # -- the inbox
    def add(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """Stamp an approval with the intent it asks about; an old one for another is void."""

        def add(store: Any, session_id: str, kind: str, *args: Any, **kwargs: Any) -> Any:
            runtime = runtime_of(store)
            call_id = kwargs.get("tool_call_id")
            intent = runtime.asking.get((session_id, call_id)) if runtime else None
            if runtime is None or intent is None or kind not in ASKED:
                return host(store, session_id, kind, *args, **kwargs)
            there = store.for_tool_call(session_id, call_id)
            if there is not None and not _counts(there, intent.intent_digest):
                void(store, there, "it was about another call")
            note = {"intent": intent.intent_digest, "execution_id": intent.execution_id}
            kwargs["data"] = {**(kwargs.get("data") or {}), thread.MARK: note}
            return host(store, session_id, kind, *args, **kwargs)

        return add

    def resolve(self, host: Callable[..., bool]) -> Callable[..., bool]:
        """Only a decision resolves a recovery item; an approval's answer is witnessed."""

        def resolve(inbox: Any, item_id: str, resolution: str) -> bool:
            runtime = runtime_of(inbox)
            item = inbox.get(item_id)
            if runtime is None or item is None:
                return host(inbox, item_id, resolution)
            if item.kind == review.KIND:
                return runtime.resolve_item(inbox, item, resolution)
            if item.kind in ASKED and item.state == "pending":
                item.data[thread.MARK] = {**stamp_of(item), "witnessed": True}
            return host(inbox, item_id, resolution)

        return resolve

    def pending(self, host: Callable[..., Any]) -> Callable[..., Any]:
        """What we raise is answered by id only, never as the session's oldest prompt."""

        def pending(inbox: Any, session_id: str | None = None) -> Any:
            items = host(inbox, session_id)
            if session_id is None or runtime_of(inbox) is None:
                return items
            return [i for i in items if i.kind != review.KIND and not stamp_of(i).get("notice")]

        return pending

    def save_inbox(self, host: Callable[..., None]) -> Callable[..., None]:
        """Write the whole file in one step, in the server process only."""

        def _save(inbox: Any) -> None:
            runtime = runtime_of(inbox)
            if not inbox.path or (runtime is not None and not runtime.server.held):
                return
            inbox.path.parent.mkdir(parents=True, exist_ok=True)
            items = [vars(i) for i in inbox._items.values()]
            write_atomic(inbox.path, json.dumps({"items": items}))

        return _save

    def load_inbox(self, host: Callable[..., None]) -> Callable[..., None]:
        """Read what can be read; an unreadable file is kept aside, not a stop at start."""

        def _load(inbox: Any) -> None:
            if not inbox.path or not inbox.path.is_file():
                return
            value = read_json_tolerant(inbox.path)
            raw_items = value.get("items") if isinstance(value, dict) else None
            lost = 0
            for raw in raw_items if isinstance(raw_items, list) else []:
                try:
                    item = self.item(**raw)
                except TypeError:
                    lost += 1
                    continue
                inbox._items[item.id] = item
            if lost:
                set_aside(inbox.path, inbox.path.read_bytes())

        return _load

    # -- the audit table
    def audit_init(self, host: Callable[..., None]) -> Callable[..., None]:
        """Add our columns, and a trigger that fills them in the host's own commit."""

        def __init__(store: Any, *args: Any, **kwargs: Any) -> None:
            host(store, *args, **kwargs)
            with contextlib.suppress(sqlite3.Error):
                _prepare_audit(store._conn)

        return __init__

    def audit_append(self, host: Callable[..., None]) -> Callable[..., None]:
        """Let the trigger know which call the host's row is about."""

        def append(store: Any, event: dict[str, Any]) -> None:
            _ids.values = event.get("durable") or {}
            try:
                host(store, event)
            finally:
                _ids.values = {}

        return append

    # -- saved threads
    def save_thread(self, host: Callable[..., None]) -> Callable[..., None]:
        """Save only what this process may write: not over the turn of another process."""

        def save(store: Any, record: Any) -> None:
            runtime = runtime_of(store)
            if runtime is None:
                host(store, record)
                return
            with runtime.writing(record.session_id) as allowed:
                if allowed:
                    _save_whole(runtime, store, record, host)

        return save


def _save_whole(runtime: Any, store: Any, record: Any, host: Callable[..., None]) -> None:
    """Save a thread; after a save that failed half-way, write all of it in one step first."""
    session_id = record.session_id
    if session_id in runtime.torn:
        write_thread(store._file(session_id), record.messages)
    try:
        host(store, record)
    except BaseException:
        runtime.own_write_failed(store._durable_manager, session_id)
        raise
    runtime.torn.discard(session_id)
    runtime.note_saved(store._durable_manager, session_id, len(record.messages))


def _counts(item: Any, intent_digest: str) -> bool:
    """Say whether an approval that is there already is about this very call and may be used."""
    if item.kind not in ASKED or stamp_of(item).get("intent") != intent_digest:
        return False
    return prompt_state(item).value != "unwitnessed"


def _prepare_audit(conn: sqlite3.Connection) -> None:
    have = {row[1] for row in conn.execute("PRAGMA table_info(audit_events)")}
    for name, kind in AUDIT_COLUMNS.items():
        if name not in have:
            conn.execute(f"ALTER TABLE audit_events ADD COLUMN {name} {kind}")
    conn.create_function("durable_id", 1, lambda key: getattr(_ids, "values", {}).get(key))
    conn.execute(TRIGGER)
    conn.commit()
