"""A host's session as recovery sees it: thread, prompts and items behind one port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from .. import review, thread
from ..identity import CallRef
from ..models import ToolIdentity
from ..policy import Descriptor
from ..port import Prompt
from ..protection import protection, tool_identity
from ..review import ItemDraft
from .files import mend_thread, sync_file, write_thread
from .items import (
    ASKED,
    PENDING,
    VOID,
    close,
    prompt_state,
    recovery_of,
    stamp,
    stamp_of,
    void,
)
from .life import Life

LOOK_SECONDS = 0.05
"""How often a wait for a running call looks whether the person has stopped it."""


def protects(spec: Any, name: str, permissions: Any = None) -> bool:
    """Say whether calls of a tool are recorded, as an engine has it now."""
    overrides = getattr(permissions, "risk_overrides", None)
    risk = overrides(name) if callable(overrides) else None
    return protection(
        name,
        getattr(spec, "metadata", None),
        getattr(spec, "func", None),
        risk=str(getattr(risk, "value", risk) or ""),
        read_only=getattr(risk, "value", risk) == "read",
    ).protected


class HostSession:
    """One session of a session manager; implements `port.SessionPort`."""

    def __init__(self, runtime: Life, manager: Any, session_id: str) -> None:
        self.runtime = runtime
        self.manager = manager
        self._session_id = session_id
        self._loaded: list[thread.Message] | None = None
        self._unreadable = False

    @property
    def session_id(self) -> str:
        """Return the session's id."""
        return self._session_id

    @property
    def server(self) -> bool:
        """Say whether this process writes inbox items."""
        return self.runtime.server.held

    @property
    def engine(self) -> Any:
        """Return the cached engine, or None."""
        return self.manager._engines.get(self._session_id)

    # -- the thread
    def _path(self) -> Any:
        return self.manager.session_store._file(self._session_id)

    def exists(self) -> bool:
        """Say whether the session has a thread."""
        return self.engine is not None or self._path().exists()

    def messages(self) -> list[thread.Message]:
        """Return the thread: the engine's, or else the saved one, its torn tail mended."""
        engine = self.engine
        if engine is not None and not _unreadable(engine):
            messages: list[thread.Message] = engine.messages
            return messages
        if self._loaded is None:
            try:
                mend_thread(self._path())
                self._loaded = self.manager.session_store._read_jsonl(self._session_id) or []
            except (OSError, ValueError):
                self._loaded, self._unreadable = [], True
        return self._loaded

    def readable(self) -> bool:
        """Say whether the thread can be read; its calls can be settled all the same."""
        self.messages()
        return not self._unreadable

    def saved(self) -> list[thread.Message]:
        """Return the messages that are on disk, power loss included; none when that is not sure."""
        try:
            sync_file(self._path())
        except OSError:
            return []
        count = self.runtime.saved_count(self.manager, self._session_id)
        return self.messages()[:count]

    def rewrite(self, messages: list[thread.Message], at: int, count: int) -> None:
        """Save the thread in one step; the engine and its compaction boundary follow."""
        write_thread(self._path(), messages)
        engine = self.engine
        if engine is None:
            self._loaded = list(messages)
            self._shift_saved_boundary(at, count)
        else:
            engine.messages[:] = messages
            state = engine.compaction_state
            if state is not None and at <= state.boundary_index:
                state.boundary_index += count
                self._save_boundary(state.as_dict())
        self.runtime.note_saved(self.manager, self._session_id, messages)
        self._index(len(messages))

    def append(self, message: thread.Message) -> None:
        """Add one message at the end and save, in one step."""
        messages = self.messages()
        self.rewrite([*messages, message], len(messages), 1)

    def _shift_saved_boundary(self, at: int, count: int) -> None:
        row = self._sql("SELECT compaction FROM sessions WHERE session_id = ?", self._session_id)
        state = json.loads(row[0] or "{}") if row else {}
        if isinstance(state, dict) and at <= int(state.get("boundary_index", -1)):
            state["boundary_index"] = int(state["boundary_index"]) + count
            self._save_boundary(state)

    def _save_boundary(self, state: dict[str, Any]) -> None:
        self._sql(
            "UPDATE sessions SET compaction = ? WHERE session_id = ?",
            json.dumps(state),
            self._session_id,
        )

    def _index(self, count: int) -> None:
        self._sql("UPDATE sessions SET n_msgs = ? WHERE session_id = ?", count, self._session_id)

    def _sql(self, sql: str, *params: Any) -> Any:
        """Run one statement of the host's index; it only mirrors the thread, so it may fail."""
        store = self.manager.session_store
        with store._lock, contextlib.suppress(sqlite3.Error):
            row = store._conn.execute(sql, params).fetchone()
            store._conn.commit()
            return row
        return None

    # -- tools
    def _spec(self, name: str) -> Any:
        engine = self.engine
        return engine.registry.get(name) if engine is not None else None

    def protects(self, name: str) -> bool:
        """Say whether calls of a tool are recorded."""
        permissions = getattr(self.engine, "permissions", None)
        return protects(self._spec(name), name, permissions)

    def tool(self, name: str) -> ToolIdentity:
        """Return the tool's identity now, its bare name when it is not there."""
        spec = self._spec(name)
        return tool_identity(spec) if spec is not None else ToolIdentity(name=name)

    def descriptor(self, name: str) -> Descriptor | None:
        """Return the tool with its policy as it is now; None while no engine is there."""
        box = getattr(getattr(self.engine, "_durable", None), "toolbox", None)
        if box is None:
            return None
        found: Descriptor = box.descriptor(name)
        return found

    def gave_up(self, execution_id: str, attempt: int) -> bool:
        """Say whether this process tried in vain to settle the attempt without a person."""
        key = (execution_id, attempt)
        if key in self.runtime.gave_up or self._session_id in self.runtime.unopened:
            return True
        return key in getattr(getattr(self.engine, "_durable", None), "unrunnable", ())

    def now(self) -> float:
        """Return the time, seconds since the epoch."""
        return self.runtime.clock()

    # -- prompts
    def _item_for(self, call_id: str) -> Any:
        return self.manager.inbox.for_tool_call(self._session_id, call_id)

    def prompt(self, ref: CallRef) -> Prompt:
        """Return the approval prompt of a call."""
        item = self._item_for(ref.call_id)
        if item is None or item.kind not in ASKED:
            return Prompt()
        return Prompt(prompt_state(item), str(stamp_of(item).get("intent") or ""), item.id)

    def void_prompt(self, call_id: str, why: str) -> None:
        """Close a call's prompt; no answer to it counts any more."""
        item = self._item_for(call_id)
        if item is not None:
            void(self.manager.inbox, item, why)

    def ask_again(self, call_id: str) -> None:
        """Void a call's prompt and raise the same question afresh."""
        inbox = self.manager.inbox
        item = self._item_for(call_id)
        if item is None:
            return
        data = {k: v for k, v in item.data.items() if k != thread.MARK}
        note = {k: v for k, v in stamp_of(item).items() if k not in ("witnessed", VOID)}
        void(inbox, item, "asked again after a restart: nothing has run")
        inbox.add(
            item.session_id, item.kind, item.title, body=item.body, inbox=item.inbox,
            data={**data, thread.MARK: note}, options=item.options, allow_text=item.allow_text,
            header=item.header, tool_call_id=call_id,
        )  # fmt: skip

    def admit_prompt(self, call_id: str, intent_digest: str) -> None:
        """Bind a pending prompt from before the ledger to the call as it stands."""
        item = self._item_for(call_id)
        if item is not None and not stamp_of(item).get("intent"):
            stamp(self.manager.inbox, item, intent=intent_digest)

    def stale_prompts(self, waiting: set[str]) -> list[CallRef]:
        """Return the calls whose approval is pending although they do not wait for one.

        Args:
            waiting: ids of the calls that may still be allowed.
        """
        return [
            CallRef(str(item.tool_call_id), str(item.data.get("tool") or ""), "")
            for item in self.manager.inbox.list(session_id=self._session_id, state=PENDING)
            if item.kind in ASKED and item.tool_call_id and item.tool_call_id not in waiting
        ]

    async def interrupted(self) -> None:
        """Return when the person stops the turn or types a line into it."""
        engine = self.engine

        def typed() -> bool:
            return engine is not None and bool(engine._cancel.is_set() or engine._steering)

        while not typed():  # noqa: ASYNC110 - the host keeps lines in a plain list, and tells nobody
            await asyncio.sleep(LOOK_SECONDS)

    # -- recovery items
    def _recovery_items(self, execution_id: str) -> Iterable[Any]:
        for item in self.manager.inbox.list(session_id=self._session_id):
            if recovery_of(item).get("execution_id") == execution_id:
                yield item

    def has_item(self, execution_id: str, attempt: int) -> bool:
        """Say whether an item is up; only the server process raises any."""
        if not self.server:
            return True
        return any(
            item.state == PENDING and recovery_of(item).get("attempt") == attempt
            for item in self._recovery_items(execution_id)
        )

    def raise_item(self, draft: ItemDraft, execution_id: str, attempt: int) -> None:
        """Put a recovery item before a person, under the next free generation of its key."""
        used = [
            item
            for item in self._recovery_items(execution_id)
            if recovery_of(item).get("attempt") == attempt
        ]
        key = review.item_key(execution_id, attempt, len(used) + 1)
        item = self.manager.inbox.add(
            self._session_id, review.KIND, draft.title, body=draft.body, data=dict(draft.data),
            options=list(draft.options), allow_text=False, header=review.HEADER,
            tool_call_id=key, inbox=self._inbox_name(),
        )  # fmt: skip
        self.runtime.tell(item)

    def _inbox_name(self) -> str:
        """Return the named inbox, with the chat it is bound to, that the session's items go to."""
        routing = getattr(self.manager, "inbox_routing", None)
        if routing is None:
            return "default"
        return str(routing.route_for(self._session_id, getattr(self.engine, "agent_name", "code")))

    def close_items(self, execution_id: str, keep_attempt: int, resolution: str) -> int:
        """Close pending items of attempts that are settled or superseded."""
        if not self.server:
            return 0
        stale = [
            item
            for item in self._recovery_items(execution_id)
            if item.state == PENDING and recovery_of(item).get("attempt") != keep_attempt
        ]
        for item in stale:
            close(self.manager.inbox, item, resolution)
        return len(stale)


def _unreadable(engine: Any) -> bool:
    """Say whether an engine's thread was written by somebody else and cannot be read."""
    return bool(getattr(getattr(engine, "_durable", None), "unreadable", False))
