"""The reference host's stores: what they keep, and how they lose it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from openworker_durable.hosts.reference import InboxStore
from openworker_durable.hosts.reference.audit import AuditStore
from openworker_durable.hosts.reference.conversations import ConversationStore
from openworker_durable.hosts.reference.providers import Message
from openworker_durable.hosts.reference.sessions import SessionRecord


def line(text: str) -> Message:
    return {"role": "user", "content": text}


def record(*texts: str) -> SessionRecord:
    return SessionRecord("s", "somewhere", "m", "interactive", messages=[line(t) for t in texts])


def saved_texts(store: ConversationStore) -> list[str]:
    loaded = store.load("s")
    assert loaded is not None
    return [message["content"] for message in loaded.messages]


async def test_inbox_items_survive_a_restart_and_resolve_once(tmp_path: Path) -> None:
    path = tmp_path / "inbox.json"
    item = InboxStore(path).add_question("s", "which?", options=["a", "b"], tool_call_id="q")
    store = InboxStore(path)
    waiter = asyncio.create_task(store.wait(item.id))
    await asyncio.sleep(0)
    assert not waiter.done()
    assert store.resolve(item.id, "a") is True
    assert store.resolve(item.id, "b") is False
    assert await waiter == "a"
    again = InboxStore(path).get(item.id)
    assert again is not None
    assert (again.state, again.resolution, again.options) == ("resolved", "a", ["a", "b"])


def test_fault_a_used_call_id_returns_the_old_resolved_item() -> None:
    store = InboxStore()
    first = store.add_approval("s", "Run `send`?", tool_call_id="call_0")
    store.resolve(first.id, "allow")
    second = store.add_approval("s", "Run `delete`?", tool_call_id="call_0")
    assert second is first
    assert store.add_approval("other", "Run `send`?", tool_call_id="call_0") is not first
    assert store.add_approval("s", "Run `send`?") is not store.add_approval("s", "Run `send`?")


def test_inbox_lists_by_session_state_and_visibility() -> None:
    store = InboxStore()
    one = store.add_approval("s", "one", visibility="inline")
    two = store.add_notification("s", "two")
    store.add_notification("t", "three")
    assert store.pending("s") == [one, two]
    assert store.list(visibility="inline") == [one]
    assert store.resolve_session("s") == 2
    assert [item.title for item in store.pending()] == ["three"]
    assert one.resolution == "session deleted"


@pytest.mark.parametrize("content", ['{"items": [', '{"items": [{"id": "1", "surprise": 2}]}'])
def test_fault_a_bad_inbox_file_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "inbox.json"
    path.write_text(content)
    with pytest.raises((ValueError, TypeError)):
        InboxStore(path)


def test_audit_keeps_events_newest_first_without_secrets(tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "coworker.db")
    arguments = {"to": "ann", "auth": {"api_token": "t"}, "body": "dear", "list": [{"raw": 1}]}
    store.append({"session_id": "s", "tool": "send", "stage": "proposed", "arguments": arguments})
    store.append({"session_id": "s", "tool": "look", "stage": "started", "surprise": 1})
    newest, oldest = store.list(session_id="s")
    assert (newest["tool"], oldest["stage"]) == ("look", "proposed")
    hidden = "[hidden]"
    assert oldest["args"] == {
        "to": "ann",
        "auth": {"api_token": hidden},
        "body": hidden,
        "list": [{"raw": hidden}],
    }
    assert store.list(tool="send") == [oldest]
    assert store.list(limit=1) == [newest]


def test_audit_accepts_a_table_with_more_columns(tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "coworker.db")
    store._conn.execute("ALTER TABLE audit_events ADD COLUMN execution_id TEXT")
    store.append({"tool": "send", "stage": "started"})
    assert store.list()[0]["execution_id"] is None


def test_a_thread_grows_by_appending(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    store.save(record("a"))
    store.save(record("a", "b"))
    assert saved_texts(ConversationStore(tmp_path)) == ["a", "b"]
    assert [(r.title, r.message_count) for r in store.list()] == [("a", 2)]


def test_a_shorter_thread_is_written_anew(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    store.save(record("a", "b", "c"))
    store.save(record("x"))
    assert saved_texts(store) == ["x"]


def test_fault_a_message_inserted_in_the_middle_is_lost_and_the_last_one_doubled(
    tmp_path: Path,
) -> None:
    store = ConversationStore(tmp_path)
    store.save(record("a", "c"))
    store.save(record("a", "b", "c"))
    assert saved_texts(store) == ["a", "c", "c"]


def test_fault_a_replaced_message_is_never_written(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    store.save(record("a", "b"))
    store.save(record("a", "B"))
    assert saved_texts(store) == ["a", "b"]


def test_fault_two_writers_lose_messages(tmp_path: Path) -> None:
    one, two = ConversationStore(tmp_path), ConversationStore(tmp_path)
    one.save(record("a"))
    one.save(record("a", "from one"))
    two.save(record("a", "from two"))
    assert saved_texts(one) == ["a", "from one"]


def test_fault_a_torn_last_line_makes_the_session_unloadable(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    store.save(record("a", "b"))
    path = store._file("s")
    path.write_text(path.read_text()[:-5])
    with pytest.raises(json.JSONDecodeError):
        store.load("s")
    store.save(record("a", "b", "c"))
    assert len(path.read_text().splitlines()) == 2, "the next line was glued to the torn one"


def test_a_session_is_deleted_with_its_thread(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    store.save(record("a"))
    assert store.delete("s") is True
    assert store.delete("s") is False
    assert store.load("s") is None
    assert not store._file("s").exists()
    store.close()
