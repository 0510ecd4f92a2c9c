"""C22 on both hosts: torn inbox files and threads are read as far as they can be, bytes aside."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.hosts import files
from tests.host.harness import Lab, call, reply
from tests.host.stores_kit import SESSION, Stores, asides, stores

__all__ = ["stores"]

USER = b'{"role": "user", "content": "%s"}'
A, B, C = (USER % t for t in (b"a", b"b", b"c"))
D = b'{"content": "d", "role": "user"}'


# -- the inbox
def filled(stores: Stores) -> bytes:
    inbox = stores.manager.inbox
    inbox.add(SESSION, "question", "one?")
    inbox.add(SESSION, "approval", "Run `send`?", tool_call_id="c1")
    inbox.resolve(inbox.list()[0].id, "yes")
    content: bytes = inbox.path.read_bytes()
    return content


def test_c22_an_inbox_torn_at_every_byte_keeps_its_whole_items(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled(stores)
    path = stores.folder / "inbox.json"
    kept: list[bytes] = []
    monkeypatch.setattr(
        "openworker_durable.hosts.inbox_file.set_aside", lambda p, c: kept.append(c)
    )
    ends = [len(whole) - 2, whole.index(b'},{"id"') + 1]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert len(stores.inbox()._items) == sum(length >= end for end in ends), length
    assert kept == [whole[:length] for length in range(len(whole))]


def test_c22_bad_bytes_are_kept_once_not_at_every_start(stores: Stores) -> None:
    whole = filled(stores)
    path = stores.folder / "inbox.json"
    path.write_bytes(whole[:-9])
    first, second = stores.inbox(), stores.inbox()
    assert list(first._items) == list(second._items) != []
    assert [p.read_bytes() for p in asides(stores.folder)] == [whole[:-9]]
    first.add(SESSION, "question", "again?")
    assert json.loads(path.read_bytes())["items"][-1]["title"] == "again?"


def test_items_of_a_newer_host_are_kept_without_what_is_unknown(stores: Stores) -> None:
    filled(stores)
    path = stores.folder / "inbox.json"
    value = json.loads(path.read_text())
    value["items"][0]["surprise"] = 1
    path.write_text(json.dumps(value))
    assert len(stores.inbox()._items) == 2
    assert len(asides(stores.folder)) == 1


BAD: list[Any] = [
    7, None, [], {}, {"id": "x"}, {"id": [1], "session_id": "s", "kind": "k", "title": "t"},
    {"id": "x", "session_id": "s", "kind": "k", "title": "t", "data": [1]},
    {"id": "x", "session_id": "s", "kind": "k", "title": "t", "created_at": None},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=map(str, BAD))
def test_what_is_no_item_does_not_stop_the_others(stores: Stores, bad: Any) -> None:
    filled(stores)
    path = stores.folder / "inbox.json"
    value = json.loads(path.read_text())
    value["items"].insert(0, bad)
    path.write_text(json.dumps(value))
    again = stores.inbox()
    assert [i.title for i in again.list()] == ["one?", "Run `send`?"]
    assert len(asides(stores.folder)) == 1


@pytest.mark.parametrize("content", [b"[]", b"7", b'{"items": 7}', b"\xff\xfe", b"\0" * 90, b""])
def test_a_file_that_is_no_inbox_is_an_empty_one(stores: Stores, content: bytes) -> None:
    (stores.folder / "inbox.json").write_bytes(content)
    assert stores.inbox()._items == {}
    assert [p.read_bytes() for p in asides(stores.folder)] == [content]


def test_of_two_items_with_one_id_the_answered_one_stands(stores: Stores) -> None:
    filled(stores)
    path = stores.folder / "inbox.json"
    value = json.loads(path.read_text())
    value["items"].append({**value["items"][0], "state": "pending", "resolution": None})
    path.write_text(json.dumps(value))
    states = {i.title: i.state for i in stores.inbox().list()}
    assert states == {"one?": "resolved", "Run `send`?": "pending"}


def test_a_write_that_fails_leaves_the_inbox_as_it_was(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled(stores)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="space"):
        stores.manager.inbox.add(SESSION, "question", "two?")
    assert (stores.folder / "inbox.json").read_bytes() == whole
    assert not list(stores.folder.glob(".*.tmp"))


def test_the_inbox_is_synced_soon_and_not_in_the_call(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openworker_durable.hosts import inbox_file

    path = stores.folder / "inbox.json"
    synced: list[Path] = []
    timers: list[Any] = []
    here, real = threading.current_thread(), os.fsync

    def fsync(handle: int) -> None:
        """Threads of earlier tests may still sync files of theirs."""
        assert threading.current_thread() is not here, "synced in the call"
        real(handle)

    def sync_file(which: Path) -> None:
        synced.extend([which] if which == path else [])

    class Timer(threading.Timer):
        def start(self) -> None:
            if self.args == (path,):
                timers.append(partial(self.function, *self.args))
            else:
                super().start()

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(inbox_file, "sync_file", sync_file)
    monkeypatch.setattr("threading.Timer", Timer)
    filled(stores)
    assert (len(timers), synced) == (1, [])
    timers[0]()
    assert synced == [path]
    stores.manager.inbox.add(SESSION, "question", "two?")
    assert len(timers) == 2
    timers[1]()


# -- threads
def loads(stores: Stores) -> list[str]:
    """Return what the host's own loader makes of the thread."""
    return [m["content"] for m in stores.manager.session_store._read_jsonl(SESSION)]


def test_c22_a_thread_torn_at_every_byte_loads(stores: Stores) -> None:
    whole = b"\n".join([A, B, C, b""])
    ends = [len(A), len(A + B) + 1, len(whole) - 1]
    for length in range(len(whole) + 1):
        stores.thread.write_bytes(whole[:length])
        aside = files.mend_thread(stores.thread)
        count = sum(length >= end for end in ends)
        assert loads(stores) == ["a", "b", "c"][:count], length
        torn = whole[:length].rpartition(b"\n")[2]
        assert (aside.read_bytes() if aside else b"") == (
            torn if torn != (A, B, C)[count - 1] else b""
        )
        stores.manager.session_store._append(SESSION, [{"role": "user", "content": "next"}])
        assert loads(stores)[-1] == "next"


DAMAGED = {
    "torn in the middle": (b"\n".join([A, b'{"role": "us', B, b""]), ["a", "b"], b'{"role": "us'),
    "the next line glued on": (A + b'\n{"role": "us' + B + b"\n", ["a", "b"], b'{"role": "us' + B),
    "NULs at the end": (A + b"\n" + b"\0" * 60, ["a"], b"\0" * 60),
    "NULs, then a line": (A + b"\n" + b"\0" * 9 + B + b"\n", ["a", "b"], b"\0" * 9 + B),
    "a byte order mark": (b"\xef\xbb\xbf" + D + b"\n", ["d"], b"\xef\xbb\xbf" + D),
    "NULs before a line": (b"\0" * 9 + D + b"\n", ["d"], b"\0" * 9 + D),
    "bad UTF-8": (A + b"\n" + USER % b"\xff" + b"\n" + B + b"\n", ["a", "b"], USER % b"\xff"),
    "no object": (A + b"\n7\n" + B + b"\n", ["a", "b"], b"7"),
    "a separator in a text": (
        A + b"\n" + USER % "x\u2028y".encode() + b"\n", ["a", "x\u2028y"],
        USER % "x\u2028y".encode(),
    ),
    "nothing readable": (b"\0\xff" * 40, [], b"\0\xff" * 40),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_c22_a_damaged_thread_loads_and_its_bytes_are_kept_once(stores: Stores, case: str) -> None:
    content, texts, bad = DAMAGED[case]
    for _ in (1, 2):
        stores.thread.write_bytes(content)
        aside = files.mend_thread(stores.thread)
        assert aside is not None
        assert aside.read_bytes() == bad
        assert loads(stores) == texts
    assert len(asides(stores.thread.parent)) == 1
    assert files.mend_thread(stores.thread) is None


@pytest.mark.parametrize(
    "content", [b"", A + b"\n", A + b"\r\n" + B + b"\r\n", A + b"\n\n" + B + b"\n"]
)
def test_a_whole_thread_is_not_touched(stores: Stores, content: bytes) -> None:
    stores.thread.write_bytes(content)
    before = os.stat(stores.thread)
    assert files.mend_thread(stores.thread) is None
    after = os.stat(stores.thread)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert stores.thread.read_bytes() == content
    assert asides(stores.thread.parent) == []


@pytest.mark.parametrize("written", [False, True])
def test_a_kill_around_the_mending_loses_nothing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    content = A + b'\n{"role'
    stores.thread.write_bytes(content)
    real = files.write_atomic

    def killed(target: Path, content: Any, **more: Any) -> None:
        if target != stores.thread or written:
            real(target, content, **more)
        if target == stores.thread:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            files.mend_thread(stores.thread)
    assert [p.read_bytes() for p in asides(stores.thread.parent)] == [b'{"role']
    files.mend_thread(stores.thread)
    assert len(asides(stores.thread.parent)) == 1
    assert stores.thread.read_bytes() == A + b"\n"


def test_the_engine_of_a_torn_thread_is_had_with_what_is_whole(stores: Stores) -> None:
    stores.save("a", "b")
    with stores.thread.open("ab") as file:
        file.write(b'{"role": "us')
    engine = stores.manager.get_engine(SESSION)
    assert [m["content"] for m in engine.messages if m["role"] == "user"] == ["a", "b"]
    assert len(asides(stores.thread.parent)) == 1


async def test_c22_a_recovery_item_is_up_once_wherever_the_inbox_was_torn(lab: Lab) -> None:
    world = lab.world(reply(call("send", "k1")))
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go", "send")
    whole = (world.folder / "inbox.json").read_bytes()
    lengths = sorted({*range(0, len(whole), len(whole) // 12), len(whole) - 1, len(whole)})
    for length in lengths:
        folder = world.copy(f"torn{length}")
        (folder / "inbox.json").write_bytes(whole[:length])
        again = await world.reopen(folder).restart()
        assert [i.data["recovery"]["tool"] for i in again.items()] == ["send"], length
        assert len(asides(folder)) == (length < len(whole))
        twice = await again.crash("twice").restart()
        assert len(twice.items()) == 1, length
        assert len(asides(twice.folder)) == (length < len(whole))
    assert lab.outside.count("send") == 1
