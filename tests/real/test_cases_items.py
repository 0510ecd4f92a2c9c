"""Field cases about prompts and items on the real host: C17-C19, C21, C30, C31."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.real.nursery import Real

pytestmark = pytest.mark.crash


def _open(life: Any, kill: str = "", **kwargs: Any) -> None:
    from tests.real.script import call, reply

    life.open(reply(call("send", "call_0", to="a")), kill=kill, **kwargs)


async def _killed(life: Any, place: str) -> None:
    _open(life, place)
    await life.attended_and_allowed("go")


def _pending(facts: Any, kind: str = "recovery_required") -> int:
    return sum(i["kind"] == kind and i["state"] == "pending" for i in facts["items"])


async def _answered_and_killed(life: Any, word: str) -> None:
    from tests.real.life import die

    _open(life)
    life.later(life.attended("go"))
    item = await life.asked("a")
    await life.until(lambda: life.saved() and life.saved()[-1].get("tool_calls"), "saved")
    life.manager.inbox.resolve(item.id, word)
    die()


async def _started_up(life: Any) -> Any:
    _open(life)
    await life.start_up()
    await life.settled()
    for item in life.approvals():
        await life.answer(item)
    await life.quiet()
    return life.facts()


def test_c17_nobody_has_to_click_a_dead_card(real: Real) -> None:
    real.killed(_answered_and_killed, word="allow")
    facts = real.run(_started_up)
    assert real.effects() == ["send a"]
    assert _pending(facts, "approval") == _pending(facts) == 0
    assert facts["messages"][-1]["content"] == "done"


async def _resumed(life: Any) -> Any:
    _open(life)
    await life.start_up()
    await life.resume()
    await life.settled()
    return life.facts()


@pytest.mark.parametrize(
    "word", ["deny", " Deny", "", "session deleted", "seen", "Allow", "allow "]
)
def test_c18_only_an_exact_allow_authorises(real: Real, word: str) -> None:
    real.killed(_answered_and_killed, word=word)
    facts = real.run(_resumed)
    assert real.effects() == []
    assert facts["states"] == []


def _event(text: str, item_id: str) -> Any:
    source = SimpleNamespace(platform="telegram", chat_id="c", user_id="u", team_id=None)
    return SimpleNamespace(text=f"{text} [ow:{item_id}]", source=source)


async def _no_decision(life: Any, how: str) -> Any:
    _open(life)
    await life.go_on("resume")
    (item,) = life.items()
    manager = life.manager
    if how == "dismissed":
        assert not await manager.resolve_inbox(item.id, "seen")
    elif how == "a waiter times out":
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(manager.inbox.wait(item.id), 0.05)
    elif how == "all of the session resolved":
        manager.inbox.resolve_session("s1")
    elif how == "a button that is no decision":
        from coworker.interactions import encode

        click = {"platform": "telegram", "chat_id": "c", "user_id": "u", "message_id": None}
        await manager._on_interaction(SimpleNamespace(value=encode(item.id, "allow"), **click))
    else:
        for word in WORDS:
            manager._resolve_inbox_reply(_event(word, item.id))
    await life.quiet()
    return life.facts()


WORDS = ["approve", "yes", "deny", "no", "👍", "it did, I think"]
HOWS = [
    "dismissed",
    "a waiter times out",
    "all of the session resolved",
    "a button that is no decision",
    "words typed in a chat",
]  # fmt: skip


@pytest.mark.parametrize("how", HOWS)
def test_c19_the_item_stays_open_and_reappears(real: Real, how: str) -> None:
    real.killed(_killed, place="in_after")
    facts = real.run(_no_decision, how=how)
    assert _pending(facts) == 1
    assert facts["states"] == ["unknown"]
    again = real.run(_started_up)
    assert _pending(again) == 1
    assert real.effects() == ["send a"]


async def _listed(life: Any, torn: bool) -> Any:
    """Ask for the inbox as the desktop window does, while another session cannot be read."""
    from coworker.server.app import create_app

    httpx = importlib.import_module("httpx")  # the host's; this project does without
    _open(life)
    await life.go_on("resume")
    life.provider.replies.clear()
    await life.deliver("hello", "s2")
    if torn:
        life.manager._engines.clear()
        life.manager.session_store._file("s2").write_bytes(b"\xff{not a thread")
        life.manager.session_store._file("s1").write_bytes(b"\xff{not a thread")
    app = httpx.ASGITransport(app=create_app(life.manager), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=app, base_url="http://host") as client:
        asked = [{}, {"session_id": "s1"}, {"session_id": "s2"}]
        answers = [await client.get("/v1/inbox", params=params) for params in asked]
    return [[a.status_code for a in answers], life.facts() if not torn else _items(life)]


def _items(life: Any) -> Any:
    kept = life.manager.inbox.list(session_id="s1")
    return {"items": [{"kind": i.kind, "state": i.state} for i in kept], "states": life.states()}


@pytest.mark.parametrize("torn", [False, True])
def test_c19_a_list_call_never_resolves_the_item(real: Real, torn: bool) -> None:
    real.killed(_killed, place="in_after")
    codes, facts = real.run(_listed, torn=torn)
    assert codes == [200, 200, 200]
    assert _pending(facts) == 1
    assert facts["states"] == ["unknown"]


async def _decided_in_chat(life: Any) -> Any:
    _open(life)
    await life.go_on("resume")
    (item,) = life.items()
    life.manager._resolve_inbox_reply(_event("happened", item.id))
    await life.until(lambda: not life.items(), "taken")
    await life.quiet()
    return life.facts()


def test_c19_a_decision_in_chat_counts_and_resumes(real: Real) -> None:
    real.killed(_killed, place="in_after")
    facts = real.run(_decided_in_chat)
    assert facts["states"] == ["succeeded"]
    assert facts["messages"][-1]["content"] == "done"


async def _stopped_server(life: Any) -> None:
    _open(life)
    await life.go_on("resume")
    await life.manager.aclose()


def test_c19_the_server_stops_in_good_order(real: Real) -> None:
    real.killed(_killed, place="in_after")
    real.run(_stopped_server)
    assert _pending(real.run(_started_up)) == 1
    assert real.effects() == ["send a"]


async def _stopped_then_approved(life: Any, restart: bool) -> Any:
    from tests.real.script import call, reply

    replies = [reply(call("send", "call_0", to="a")), reply(call("send", "call_0", to="a"))]
    life.open(*replies)
    turn = life.later(life.attended("go"))
    item = await life.asked("a")
    life.engine().request_interrupt()
    await turn
    await life.quiet()
    late = False if restart else await life.manager.resolve_inbox(item.id, "allow")
    await life.quiet()
    return {"late": late, "item": item.id, **life.facts()}


async def _approved_later(life: Any, item: str) -> Any:
    from tests.real.script import call, reply

    life.open(None, reply(call("send", "call_0", to="a")))
    await life.start_up()
    late = await life.manager.resolve_inbox(item, "allow")
    await life.quiet()
    before = life.facts()
    turn = life.later(life.attended("again"))
    await life.answer(await life.asked("a"), "deny")
    await turn
    return {"late": late, "before": before, **life.facts()}


@pytest.mark.parametrize("restart", [False, True])
def test_c21_a_stale_card_is_void(real: Real, restart: bool) -> None:
    facts = real.run(_stopped_then_approved, restart=restart)
    assert facts["late"] is False
    later = real.run(_approved_later, item=facts["item"])
    assert later["late"] is False
    assert real.effects() == []
    assert later["states"] == []
    assert later["faults"] == later["disk"] == []


async def _deleted(life: Any) -> Any:
    _open(life)
    await life.go_on("resume")
    assert life.manager.delete_session("s1")["ok"]
    await life.quiet()
    return life.facts()


async def _settled_later(life: Any) -> Any:
    _open(life)
    await life.start_up()
    (item,) = life.items()
    words = item.data["recovery"]["decisions"]
    taken = [await life.manager.resolve_inbox(item.id, w) for w in ("retry", "happened")]
    await life.quiet()
    return {"words": words, "taken": taken, **life.facts()}


def test_c30_a_deleted_session_leaves_what_can_be_settled(real: Real) -> None:
    real.killed(_killed, place="in_after")
    facts = real.run(_deleted)
    assert facts["states"] == ["unknown"]
    assert _pending(facts) == 1
    later = real.run(_settled_later)
    assert "retry" not in later["words"]
    assert later["taken"] == [False, True]
    assert later["states"] == ["succeeded"]
    assert real.effects() == ["send a"]
    assert not real.thread_file().exists()


def _with_server(life: Any, kill: str = "", connects: bool = True) -> None:
    """Open with a tool that only a connected MCP server gives, as the web socket does."""
    from tests.real.script import call, reply

    name = "mcp__box__post"
    life.open(reply(call(name, "call_0", to="a")), kill=kill)
    tool = life._tool(name)

    async def prepare_mcp_tools(session_id: str, **_: Any) -> list[Any]:
        if not connects:
            raise ConnectionError("the server does not start")
        return [] if session_id in life.manager._engines else [tool]

    life.manager.prepare_mcp_tools = prepare_mcp_tools


async def _mcp_killed(life: Any, place: str) -> None:
    _with_server(life, place)
    tools = await life.manager.prepare_mcp_tools("s1")
    life.manager.get_engine("s1", extra_tools=tools)
    await life.attended_and_allowed("go")


async def _mcp_after(life: Any, connects: bool) -> Any:
    _with_server(life, connects=connects)
    life.person()
    await life.start_up()
    await life.quiet()
    await life.runtime.drive("s1")
    await life.quiet()
    return {**life.facts(), "errors": life.log_lines()}


def test_c31_its_server_is_connected_first(real: Real) -> None:
    real.killed(_mcp_killed, place="approved")
    facts = real.run(_mcp_after, connects=True)
    assert real.effects() == ["mcp__box__post a"]
    assert facts["states"] == ["succeeded"]
    assert facts["messages"][-1]["content"] == "done"


def test_c31_without_its_server_a_known_result_is_rebuilt(real: Real) -> None:
    real.killed(_mcp_killed, place="returned")
    facts = real.run(_mcp_after, connects=False)
    assert real.effects() == ["mcp__box__post a"]
    assert facts["faults"] == []
    assert [m["role"] for m in facts["messages"]][:3] == ["user", "assistant", "tool"]


def test_c31_without_its_server_an_approved_call_stays_open(real: Real) -> None:
    real.killed(_mcp_killed, place="approved")
    facts = real.run(_mcp_after, connects=False)
    assert real.effects() == []
    assert [m["role"] for m in facts["messages"]] == ["user", "assistant", "notice"]
    assert "mcp__box__post cannot be reached" in facts["messages"][-1]["text"]
    later = real.run(_mcp_after, connects=True)
    assert real.effects() == ["mcp__box__post a"]
    assert later["faults"] == []
