"""C20: results that come after a decision are kept and shown; nothing is overwritten or re-run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openworker_durable import rows, texts
from openworker_durable.hosts import watching
from openworker_durable.policy import manual
from openworker_durable.states import Decision
from tests.host.harness import SESSION, Lab, World, call, reply
from tests.host.policies import DONE, declared, office


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.01)


def notes(world: World) -> list[Any]:
    return [
        i for i in world.manager.inbox.list(session_id=SESSION)
        if i.kind == "notification" and "late result" in i.title
    ]  # fmt: skip


CASES = {
    "drop": (Decision.DROP, "stands on record as not done"),
    "retry": (Decision.RETRY, "may have been done twice"),
    "happened": (Decision.HAPPENED, ""),
}


@pytest.mark.parametrize("name", CASES)
async def test_c20_a_result_after_the_decision_is_shown_as_a_conflict(lab: Lab, name: str) -> None:
    decision, says = CASES[name]
    world = lab.world(reply(call("send", "k1", what="a")), DONE)
    await world.restart()
    await world.cut_off_inside("send")
    row = world.rows()[0]
    ledger, guard = world.runtime.ledger, world.runtime.guard
    await ledger.ask(lose_it, row.execution_id, row.owner)
    world.runtime.decide(*row.key, decision, by="test")
    if decision is Decision.RETRY:
        await ledger.ask(supersede, row.execution_id)
    lab.outside.release.set()
    await world.until(guard.idle)
    await world.until(lambda: ledger.known(rows.evidence(row.execution_id)) or not says)
    if says:
        await world.until(lambda: notes(world), "the note")
    for _ in range(3):
        await asyncio.to_thread(world.runtime.tell_conflicts)
    assert [says in n.body for n in notes(world)] == ([True] if says else [])
    after = world.runtime.ledger.first(rows.row(*row.key))
    assert after is not None
    assert after.decision is decision
    assert lab.outside.count("send") == 1


def lose_it(conn: Any, execution_id: str, owner: str) -> None:
    conn.execute(
        "UPDATE tool_executions SET state = 'unknown', reason = 'owner_died', ended_at = 1"
        " WHERE execution_id = ? AND owner = ?",
        (execution_id, owner),
    )


def supersede(conn: Any, execution_id: str) -> None:
    conn.execute(
        "UPDATE tool_executions SET superseded = 1 WHERE execution_id = ?", (execution_id,)
    )


async def test_the_repeat_guard_shows_both_calls_side_by_side(lab: Lab) -> None:
    world = lab.world(
        reply(call("send", "k1", what="to ann")), reply(call("send", "k2", what="to ann, again")),
        DONE,
    )  # fmt: skip
    world.manager.get_engine(SESSION).permissions.allow_tool_for_session("send")
    lab.outside.raises["send"] = TimeoutError()
    await world.say("go")
    asking = world.start("and now?")
    prompt = await world.prompt("send")
    told = f"{prompt.body} {prompt.data}"
    assert "Earlier: what: to ann\\nNow: what: to ann, again" in told.replace("\n", "\\n")
    await world.manager.resolve_inbox(prompt.id, "deny")
    await asking
    assert lab.outside.count("send") == 1


async def test_a_repeatable_tool_is_called_although_an_earlier_call_is_unknown(lab: Lab) -> None:
    post = office(lab)
    post.fails.append(TimeoutError())
    with declared(manual(repeatable=True)):
        world = lab.world(
            reply(call("post", "k1", what="a")), reply(call("post", "k2", what="b")), DONE
        )
        world.manager.get_engine(SESSION).permissions.allow_tool_for_session("post")
        await world.say("go")
        await world.say("and now?")
        assert world.states() == ["unknown", "succeeded"]
        assert post.calls == 2


def test_the_warning_names_both_and_claims_nothing() -> None:
    from tests.unit.test_review import row

    text = texts.repeat_warning(row(), "to: bob")
    assert "may have happened already" in text
    assert text.endswith("Earlier: to: bob · amount: 10\nNow: to: bob")
