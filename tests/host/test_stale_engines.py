"""On both hosts: an engine whose thread another process saved meanwhile never writes over it."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from openworker_durable import thread, verbs
from openworker_durable.states import State
from tests.contract.kit import in_state
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
