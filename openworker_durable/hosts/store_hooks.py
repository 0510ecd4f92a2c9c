"""What the adapter wraps around a host's stores: inbox, audit table, saved threads."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import weakref
from collections.abc import Callable
from typing import Any

from .. import review, thread
from .._db import AUDIT_COLUMNS
from . import inbox_file, threads
from .files import mend_thread, write_thread
from .items import ASKED, prompt_state, stamp_of, void
from .late import LateConnection, about, telling
from .manager_hooks import runtime_of
from .patching import Patches

log = logging.getLogger("openworker_durable")

TRIGGER = """
CREATE TEMP TRIGGER IF NOT EXISTS durable_audit_ids AFTER INSERT ON main.audit_events
WHEN durable_id('execution_id') IS NOT NULL OR durable_id('timestamp') IS NOT NULL
BEGIN
    UPDATE audit_events SET tool_call_id = durable_id('tool_call_id'),
        execution_id = durable_id('execution_id'), attempt = durable_id('attempt'),
        recovery_decision = durable_id('recovery_decision'),
        timestamp = COALESCE(durable_id('timestamp'), timestamp)
    WHERE id = NEW.id;
END
"""


class StoreHooks:
    """Builds the wrappers for one host."""

    def __init__(self, item: type) -> None:
        self.item = item
        self._stores: weakref.WeakSet[Any] = weakref.WeakSet()

    def attach(self, patches: Patches, inbox: type, audit: type, conversations: type) -> None:
        """Wrap the stores' methods."""
        patches.wrap(inbox, "add", self.add)
        patches.wrap(inbox, "resolve", self.resolve)
        patches.wrap(inbox, "pending", self.pending)
        patches.wrap(inbox, "_save", self.save_inbox)
        patches.wrap(inbox, "_load", self.load_inbox)
        patches.wrap(audit, "__init__", self.audit_init)
        patches.wrap(audit, "append", self.audit_append)
        patches.wrap(conversations, "__init__", self.conversations_init)
        patches.wrap(conversations, "_count", self.count)
        patches.wrap(conversations, "save", self.save_thread)
        patches.on_restore(self.give_back)

    def give_back(self) -> None:
        """Give the stores their own connections back; what waited is written first."""
        while self._stores:
            store = self._stores.pop()
            if isinstance(store._conn, LateConnection):
                store._conn = store._conn.restored()

    def _make_patient(self, store: Any, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """A locked database delays what a store writes; it raises nothing and blocks nobody."""
        with store._lock:
            store._conn = LateConnection(store._conn, store.db_path, prepare)
        self._stores.add(store)

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
            warning = runtime.warnings.get((session_id, call_id))
            if warning:
                kwargs["body"] = f"{warning}\n{kwargs.get('body', '')}".strip()
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
            inbox_file.write(inbox.path, inbox._items.values())

        return _save

    def load_inbox(self, host: Callable[..., None]) -> Callable[..., None]:
        """Read what can be read; unreadable bytes are kept aside, no stop at start."""

        def _load(inbox: Any) -> None:
            if inbox.path and inbox.path.is_file():
                inbox._items.update(inbox_file.read(inbox.path, self.item))

        return _load

    # -- the audit table
    def audit_init(self, host: Callable[..., None]) -> Callable[..., None]:
        """Add our columns, and a trigger that fills them in the host's own commit."""

        def __init__(store: Any, *args: Any, **kwargs: Any) -> None:
            host(store, *args, **kwargs)
            with contextlib.suppress(sqlite3.Error):
                _add_columns(store._conn)
                _fill_columns(store._conn)
            self._make_patient(store, _fill_columns)

        return __init__

    def audit_append(self, host: Callable[..., None]) -> Callable[..., None]:
        """Let the trigger know which call the host's row is about."""

        def append(store: Any, event: dict[str, Any]) -> None:
            with telling(event.get("durable") or {}):
                host(store, event)

        return append

    # -- saved threads
    def conversations_init(self, host: Callable[..., None]) -> Callable[..., None]:
        """The index only mirrors the threads: its writes may come later."""

        def __init__(store: Any, *args: Any, **kwargs: Any) -> None:
            host(store, *args, **kwargs)
            self._make_patient(store, lambda conn: None)

        return __init__

    def count(self, host: Callable[..., int]) -> Callable[..., int]:
        """Tell how many messages are on disk without reading them, where nobody else wrote."""

        def _count(store: Any, sid: str) -> int:
            known = threads.known_count(store, sid)
            return host(store, sid) if known is None else known

        return _count

    def save_thread(self, host: Callable[..., None]) -> Callable[..., None]:
        """Save only what this process may write: not over the turn of another process."""

        def save(store: Any, record: Any) -> None:
            runtime = runtime_of(store)
            if runtime is None:
                host(store, record)
                return
            # What is counted after a save must be what that save wrote, in whatever thread.
            with runtime.saving, runtime.writing(record.session_id) as allowed:
                if allowed:
                    _save_whole(runtime, store, record, host)

        return save


def _save_whole(runtime: Any, store: Any, record: Any, host: Callable[..., None]) -> None:
    """Save a thread; after a save that failed half-way, write all of it in one step first."""
    session_id = record.session_id
    if session_id in runtime.torn:
        write_thread(store._file(session_id), record.messages)
    elif not (threads.continues(store, session_id, record.messages) or _joined(store, record)):
        log.warning("session %s: an older conversation is not saved over it", session_id)
        return
    try:
        host(store, record)
    except BaseException:
        threads.forget(store, session_id)
        runtime.own_write_failed(store._durable_manager, session_id)
        raise
    runtime.torn.discard(session_id)
    runtime.note_saved(store._durable_manager, session_id, record.messages)


def _joined(store: Any, record: Any) -> bool:
    """Bring a record and its file together where one does not continue the other.

    The host would append what lies beyond as many messages as the file holds, whatever they are,
    or cut the file off.

    Returns:
        False for a thread that is not the present engine's, which must not be saved.
    """
    path = store._file(record.session_id)
    mend_thread(path)
    saved = store._read_jsonl(record.session_id) or []
    if threads.begins_with(record.messages, saved):
        return True
    engine = store._durable_manager._engines.get(record.session_id)
    if engine is not None and engine.messages is record.messages:
        write_thread(path, record.messages)  # begun anew, or cut by the person
    elif threads.begins_with(saved, record.messages):
        record.messages = saved  # the host saves something else about the session
    else:
        return False
    return True


def _counts(item: Any, intent_digest: str) -> bool:
    """Say whether an approval that is there already is about this very call and may be used."""
    if item.kind not in ASKED or stamp_of(item).get("intent") != intent_digest:
        return False
    return prompt_state(item).value != "unwitnessed"


def _add_columns(conn: sqlite3.Connection) -> None:
    have = {row[1] for row in conn.execute("PRAGMA table_info(audit_events)")}
    for name, kind in AUDIT_COLUMNS.items():
        if name not in have:
            conn.execute(f"ALTER TABLE audit_events ADD COLUMN {name} {kind}")
    conn.commit()


def _fill_columns(conn: sqlite3.Connection) -> None:
    """Let this connection fill our columns in the very statement that inserts a row."""
    conn.create_function("durable_id", 1, lambda key: about().get(key))
    conn.execute(TRIGGER)
    conn.commit()
