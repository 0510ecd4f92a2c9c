"""On both hosts: an engine whose thread another process saved meanwhile never writes over it."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from openworker_durable import thread, verbs
from openworker_durable.owner import Owner
from openworker_durable.states import State
from tests.contract.kit import in_state, row_of
from tests.host.stores_kit import SESSION, Stores, stores

__all__ = ["stores"]

THEIRS = ["theirs", "and theirs"]


def theirs(stores: Stores, *, indexed: bool = True, texts: list[str] = THEIRS) -> None:
    """Save the session's thread as another process would: nothing here is told of it."""
    lines = [{"role": "user", "content": text} for text in texts]
    if not stores.thread.exists():
        begun = stores.manager.get_engine("other").messages
        lines = [m for m in begun if m["role"] == "system"] + lines
    with stores.thread.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    if indexed:
        with sqlite3.connect(stores.db) as db:
            db.execute(
                "INSERT OR REPLACE INTO sessions (session_id, workspace, model, mode, n_msgs, "
                "grants, compaction) VALUES (?, ?, 'm', 'interactive', ?, '{}', '{}')",
                (SESSION, str(stores.project), len(stores.texts())),
            )
        db.close()


def spoken(messages: list[dict[str, Any]]) -> list[str]:
    return [m["content"] for m in messages if m["role"] == "user"]


def saved(stores: Stores) -> list[str]:
    """Return what was said, as the thread has it on disk; it begins once."""
    messages = [json.loads(x) for x in stores.thread.read_text(encoding="utf-8").splitlines()]
    assert not any(m["role"] == "system" for m in messages[1:])
    return spoken(messages)


@pytest.mark.parametrize("indexed", [True, False])
async def test_g2_a_thread_that_began_elsewhere_is_not_written_over(
    stores: Stores, indexed: bool
) -> None:
    """The window was open before there was any thread; the other's index row may be late."""
    engine = stores.manager.get_engine(SESSION)
    theirs(stores, indexed=indexed)
    stores.manager.save(SESSION, engine)
    assert saved(stores) == THEIRS
    await stores.manager.deliver_to_session(SESSION, "mine")
    assert spoken(engine.messages) == [*THEIRS, "mine"]
    assert saved(stores) == [*THEIRS, "mine"]


@pytest.mark.parametrize("indexed", [True, False])
async def test_g2_a_late_sweep_reads_what_another_process_saved(
    stores: Stores, indexed: bool
) -> None:
    """The process that takes over holds an engine from before; it adds to the other's thread."""
    engine = stores.manager.get_engine(SESSION)
    stores.runtime.ledger.run(verbs.open_session, SESSION, "life")
    in_state(stores.runtime.ledger, State.SUCCEEDED)
    theirs(stores, indexed=indexed)
    await stores.runtime.sweep()
    assert saved(stores)[:2] == spoken(engine.messages)[:2] == THEIRS
    assert len(thread.follow_up_keys(engine.messages)) == 1, "the outcome is told"


async def test_g2_what_is_saved_while_the_engine_is_loaded_is_read_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(stores, texts=["before"])
    store = type(stores.manager.session_store)
    load = store.load

    def overtaken(*args: Any) -> Any:
        record = load(*args)
        theirs(stores)
        return record

    with monkeypatch.context() as patch:
        patch.setattr(store, "load", overtaken)
        engine = stores.manager.get_engine(SESSION)
    assert spoken(engine.messages) == ["before"]
    stores.manager.save(SESSION, engine)
    assert spoken(engine.messages) == saved(stores) == ["before", *THEIRS]


async def test_g2_a_record_without_messages_does_not_empty_a_thread(stores: Stores) -> None:
    """The host saves a session it has no row of as a new one, to add a folder to it."""
    theirs(stores, indexed=False)
    whole = stores.thread.read_bytes()
    stores.save()
    assert stores.thread.read_bytes() == whole
    assert stores.index() == len(whole.splitlines())


async def test_g2_the_thread_of_a_replaced_engine_is_not_saved_over_the_new_ones(
    stores: Stores,
) -> None:
    manager = stores.manager
    old = manager.get_engine(SESSION)
    await manager.deliver_to_session(SESSION, "one")
    manager._engines.pop(SESSION)
    await manager.deliver_to_session(SESSION, "two")
    with stores.runtime.owner.hold(SESSION):
        assert [e.type.value async for e in old.run("three")] == ["error"]
    manager.save(SESSION, old)
    assert saved(stores) == ["one", "two"]
    async for _event in old.run("four"):
        pass
    manager.save(SESSION, old)
    assert saved(stores) == ["one", "two", "four"], "held by its turn, it has read the thread"


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_g2_an_engine_that_was_let_go_saves_nothing_over_what_came_since(
    stores: Stores, elsewhere: bool
) -> None:
    """After a promotion the host keeps no engine, and the window still saves the one it had."""
    manager = stores.manager
    old = manager.get_engine(SESSION)
    await manager.deliver_to_session(SESSION, "one")
    old._append_notice("note", "only here")
    manager._engines.pop(SESSION)
    if elsewhere:
        theirs(stores)
    else:
        await manager.deliver_to_session(SESSION, "two")
        manager._engines.pop(SESSION)
    whole = stores.thread.read_bytes()
    manager.save(SESSION, old)
    assert stores.thread.read_bytes() == whole


def instructed(stores: Stores) -> list[Any]:
    """Return what the session's engine begins with: its instructions, in both hosts."""
    engine = stores.manager.get_engine(SESSION)
    if not engine.messages:  # the reference host gives none
        engine.messages.append({"role": "system", "content": "be careful"})
    return list(engine.messages)


async def test_g2_a_file_without_a_message_is_no_thread(stores: Stores) -> None:
    """Another process was killed between opening the file and its first line."""
    begun = instructed(stores)
    stores.thread.touch()
    for text in ("one", "two"):
        await stores.manager.deliver_to_session(SESSION, text)
        stores.manager._engines.clear()
    assert saved(stores) == ["one", "two"]
    lines = [json.loads(x) for x in stores.thread.read_text(encoding="utf-8").splitlines()]
    assert lines[: len(begun)] == begun
    assert [m["role"] for m in lines[len(begun) :]] == ["user", "assistant"] * 2


async def test_g2_a_thread_whose_first_line_is_gone_keeps_the_engines(stores: Stores) -> None:
    begun = instructed(stores)
    stores.thread.write_text('{"role": "user", "content": "theirs"}\n', encoding="utf-8")
    await stores.manager.deliver_to_session(SESSION, "mine")
    stores.manager._engines.clear()
    await stores.manager.deliver_to_session(SESSION, "more")
    assert saved(stores) == ["theirs", "mine", "more"]
    assert stores.manager.get_engine(SESSION).messages[: len(begun)] == begun


async def test_g13_an_unreadable_thread_blocks_no_settling_where_an_engine_is_cached(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    engine = stores.manager.get_engine(SESSION)
    stores.runtime.ledger.run(verbs.open_session, SESSION, "life")
    what = in_state(stores.runtime.ledger, State.DISPATCHED)
    stores.thread.mkdir()
    counts = await stores.runtime.sweep()
    assert (counts["raised"], counts["failed"]) == (1, 0)
    assert row_of(stores.runtime.ledger, what).state is State.UNKNOWN
    for _ in range(3):
        await stores.runtime.after_turn(SESSION)
    assert caplog.text.count("cannot be read") == 1, "said once, not at every look"
    assert SESSION in stores.runtime._again
    stores.thread.rmdir()
    theirs(stores)
    await stores.runtime.after_turn(SESSION)
    assert SESSION not in stores.runtime._again
    assert spoken(engine.messages)[:2] == THEIRS


async def test_g2_a_turns_last_words_are_saved_before_the_session_is_given_back(
    stores: Stores,
) -> None:
    """The host's own save comes when another process may have the session already."""
    engine = stores.manager.get_engine(SESSION)
    async for _event in engine.run("mine"):
        pass
    whole = [json.loads(x) for x in stores.thread.read_text(encoding="utf-8").splitlines()]
    assert [m["role"] for m in whole[-2:]] == ["user", "assistant"]
    other = Owner(stores.folder)
    with other.hold(SESSION):
        stores.manager.save(SESSION, engine)
        theirs(stores)
    other.close()
    await stores.manager.deliver_to_session(SESSION, "more")
    assert saved(stores) == ["mine", *THEIRS, "more"]


@pytest.mark.parametrize("fails", ["_load", "_save"])
async def test_c22_taking_over_an_inbox_that_cannot_be_read_now_loses_nothing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    inbox, runtime = stores.manager.inbox, stores.runtime
    item = inbox.add(SESSION, "approval", "pay?", tool_call_id="c1")
    runtime.server.close()

    def in_use(*_: Any) -> None:
        raise PermissionError("in use")

    with monkeypatch.context() as patch:
        patch.setattr(type(inbox), fails, in_use)
        with pytest.raises(PermissionError):
            runtime._serve()
    assert runtime._serve()
    assert runtime._sweep_due
    inbox.add("another", "approval", "other?", tool_call_id="c2")
    assert item.id in {i["id"] for i in json.loads(inbox.path.read_text())["items"]}


async def test_c21_an_answer_to_a_copy_does_not_count_where_the_prompt_was_closed(
    stores: Stores,
) -> None:
    """Another process, not the server, still shows a prompt that the server has voided."""
    inbox, runtime = stores.manager.inbox, stores.runtime
    item = inbox.add(SESSION, "approval", "pay?", tool_call_id="c1")
    waits = inbox.add(SESSION, "approval", "and this?", tool_call_id="c2")
    left = json.loads(inbox.path.read_text())
    left["items"][0].update(state="resolved", resolution="deny")
    runtime.server.close()
    for shown in (item, waits):
        inbox.resolve(shown.id, "allow")
    inbox.path.write_text(json.dumps(left))
    assert runtime._serve()
    assert [inbox.get(i.id).resolution for i in (item, waits)] == ["deny", "allow"]


async def test_a_thread_that_becomes_unreadable_in_a_turn_does_not_break_it(stores: Stores) -> None:
    engine = stores.manager.get_engine(SESSION)
    kinds = []
    async for event in engine.run("x"):
        kinds.append(event.type.value)
        if event.type.value == "turn_start":
            stores.thread.mkdir()
    assert kinds[-1] == "turn_end"
