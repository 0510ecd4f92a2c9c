"""Recovery items in today's surfaces: the host's listing, chat buttons, chat replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from openworker_durable import review
from openworker_durable.hosts.names import HostNames
from openworker_durable.states import Decision
from tests.host.surfaces import SESSION, Click, Line, Source, halted, recovery_item, row
from tests.waiting import until


@pytest_asyncio.fixture
async def manager(host: HostNames, tmp_path: Path) -> AsyncIterator[Any]:
    (tmp_path / "state").mkdir()
    made = await halted(host, tmp_path / "state")
    yield made
    made._durable_runtime.mirror_waiting()
    await made.aclose()


def _value(item: Any, word: str) -> str:
    return json.dumps({"id": item.id, "r": word})


# -- the listing
def test_the_listing_serves_the_item_as_a_question_with_its_decisions(manager: Any) -> None:
    stored = recovery_item(manager)
    served = [i for i in manager.inbox.list(visibility="inbox") if i.id == stored.id]
    assert [i.kind for i in served] == ["question"]
    assert served[0].options == list(review.LABELS.values())
    assert served[0].allow_text is False
    assert served[0].header == "Unknown outcome"
    assert served[0].data["recovery"]["execution_id"] == row(manager).execution_id
    assert stored.kind == "recovery_required", "what is stored stays what it is"
    saved = json.loads(manager.inbox.path.read_text())["items"]
    assert [i["kind"] for i in saved] == ["recovery_required"]


@pytest.mark.parametrize("decision", [Decision.HAPPENED, Decision.DROP, Decision.UNSURE])
async def test_each_button_of_the_served_question_is_its_decision(
    manager: Any, decision: Decision
) -> None:
    item = recovery_item(manager)
    final = decision is not Decision.UNSURE
    assert await manager.resolve_inbox(item.id, review.LABELS[decision]) is final
    assert row(manager).decision == (decision if final else None)
    assert recovery_item(manager).state == ("resolved" if final else "pending")


def test_c19_an_answer_over_a_sessions_web_socket_never_reaches_it(manager: Any) -> None:
    assert manager.inbox.pending(SESSION) == []


def test_c22_a_listing_goes_on_past_a_conversation_that_cannot_be_read(manager: Any) -> None:
    manager._engines.clear()
    manager.session_store._file(SESSION).write_text('{"role": "us\n{"role": "user"}\n')
    prompt = manager.inbox.add_approval(SESSION, "Run?", tool_call_id="c9")
    listed = manager.inbox.list(visibility="inbox")
    shown = [manager.session_store.load(i.session_id) for i in listed]
    assert ["cannot be read" in s.title for s in shown] == [True, True]
    assert prompt.state == "pending"
    with pytest.raises(ValueError, match=r".+"):
        manager.session_store.load(SESSION)


async def test_c30_an_item_of_a_deleted_session_is_listed_and_can_be_decided(manager: Any) -> None:
    assert manager.delete_session(SESSION)["ok"]
    manager.inbox.resolve_session(SESSION)
    item = next(i for i in manager.inbox.list(state="pending") if i.kind == "recovery_required")
    manager.inbox.list(state="pending", visibility="inbox")
    assert manager.session_store.load(SESSION).title == "(deleted)"
    assert manager.session_store.load(SESSION) is None, "and only for that listing"
    assert await manager.resolve_inbox(item.id, "drop")
    assert row(manager).decision is Decision.DROP


async def test_an_open_window_sees_the_decision_and_that_the_turn_ended(manager: Any) -> None:
    told: list[dict[str, Any]] = []

    async def window(message: dict[str, Any]) -> None:
        told.append(message)

    manager.register_session_client(SESSION, window)
    await manager.resolve_inbox(recovery_item(manager).id, "happened")
    await until(lambda: any(m["type"] == "turn_done" for m in told))
    assert "(resumed)" not in json.dumps(told), "nobody typed that"
    cards = [m["data"]["source"]["text"] for m in told if "source" in m["data"]]
    assert cards == ["Settled: send_mail happened."]
    seen = ["card" if "source" in m["data"] else m["type"] for m in told]
    assert seen.count("assistant_message") == 1
    assert seen.index("card") < seen.index("assistant_message"), "in the order of the thread"


# -- the chat
async def test_what_the_sweep_raised_is_mirrored_once_the_gateway_is_up(manager: Any) -> None:
    assert manager.gateway.buttons == []
    manager._durable_runtime.mirror_waiting()
    await until(lambda: manager.gateway.buttons)
    target, text, buttons = manager.gateway.buttons[0]
    assert target == "slack:C1"
    assert "Did send_mail happen?" in text
    assert [b.label for b in buttons] == list(review.LABELS.values())
    item = recovery_item(manager)
    assert [json.loads(b.value) for b in buttons] == [
        {"id": item.id, "r": label} for label in review.LABELS.values()
    ]


async def test_a_button_in_the_chat_decides(manager: Any) -> None:
    item = recovery_item(manager)
    await manager._on_interaction(Click(_value(item, review.LABELS[Decision.HAPPENED])))
    assert row(manager).decision is Decision.HAPPENED
    assert row(manager).decided_by == "inbox"
    assert manager.gateway.updates, "the buttons give way to the outcome"
    await until(lambda: any(m.get("content") == "done" for m in manager.session_messages(SESSION)))


@pytest.mark.parametrize("click", [{"user_id": "U2"}, {"chat_id": "C2"}, {"user_id": ""}])
async def test_only_the_owner_in_the_bound_channel_may_click(
    manager: Any, click: dict[str, str]
) -> None:
    item = recovery_item(manager)
    await manager._on_interaction(Click(_value(item, "happened"), **click))
    assert len(manager.gateway.rejected) == 1
    assert item.state == "pending"
    assert row(manager).undecided


@pytest.mark.parametrize(
    ("word", "told"), [("approve", review.HINT), ("Not sure: keep it open", review.KEPT)]
)
async def test_what_settles_nothing_in_the_chat_leaves_it_open_and_says_so(
    manager: Any, word: str, told: str
) -> None:
    item = recovery_item(manager)
    await manager._on_interaction(Click(_value(item, word)))
    assert item.state == "pending"
    assert manager.gateway.said == [("slack:C1", told)]


def test_what_a_listing_is_shown_never_becomes_an_engine(manager: Any) -> None:
    """Also where both happen in one place: the listing's knowledge ends there."""
    assert manager.delete_session(SESSION)["ok"]
    manager.inbox.list(state="pending", visibility="inbox")
    engine = manager.get_engine(SESSION)
    assert [m for m in engine.messages if m["role"] != "system"] == []


@pytest.mark.parametrize("word", ["approve", "yes", "deny", "no", "ok", "👍", "it happened", ""])
async def test_c19_a_bare_word_in_a_reply_leaves_it_open_with_a_hint(
    manager: Any, word: str
) -> None:
    item = recovery_item(manager)
    assert manager._resolve_inbox_reply(Line(f"{word} [ow:{item.id}]")) is True
    await until(lambda: manager.gateway.said)
    assert manager.gateway.said == [("slack:C1", review.HINT)]
    assert item.state == "pending"
    assert row(manager).undecided


@pytest.mark.parametrize("word", ["happened", "It happened"])
async def test_a_decision_in_a_reply_settles_it_and_resumes_the_session(
    manager: Any, word: str
) -> None:
    item = recovery_item(manager)
    assert manager._resolve_inbox_reply(Line(f"{word} [ow:{item.id}]")) is True
    await until(lambda: any(m.get("content") == "done" for m in manager.session_messages(SESSION)))
    assert row(manager).decision is Decision.HAPPENED


async def test_a_reply_of_somebody_else_does_not_count(manager: Any) -> None:
    item = recovery_item(manager)
    line = Line(f"happened [ow:{item.id}]", Source(user_id="U2"))
    assert manager._resolve_inbox_reply(line) is True
    await until(lambda: not manager._durable_runtime._tasks)
    assert row(manager).undecided
    assert item.state == "pending"


async def test_a_reply_without_a_known_token_is_the_hosts(manager: Any) -> None:
    assert manager._resolve_inbox_reply(Line("hello")) is False
