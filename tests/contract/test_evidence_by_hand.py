"""Evidence by hand: who may give it, what it settles, what is checked, and what is told of it."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import rows, verbs
from openworker_durable.config import Settings
from openworker_durable.errors import (
    AlreadyDecided,
    AlreadyRecorded,
    PolicyError,
    Refused,
)
from openworker_durable.evidence import MAX_EVENT, NotAllowed, submit
from openworker_durable.ledger import Ledger
from openworker_durable.models import ToolIdentity
from openworker_durable.snapshot import encode
from openworker_durable.states import Decision, Reason, State
from openworker_durable.validate import ResultRefused
from tests.contract.by_hand import CANARY, NUMBERED, SETTINGS, give, give_error, said, unchanged
from tests.contract.kit import ME, audits, decided, in_state, intent, item, plain, row_of, table


# -- what it settles
async def test_a_result_settles_the_attempt_with_its_own_audit_row(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    assert await give(ledger, what, {"number": 7}) is True
    row = row_of(ledger, what)
    assert (row.state, row.reason, row.ended_at) == (State.SUCCEEDED, Reason.EVIDENCE.value, 7.0)
    assert ledger.first(rows.stored_snapshot(what.execution_id, 1)) == encode({"number": 7})
    told = audits(ledger.path)[-1]
    assert (told["stage"], told["status"]) == ("evidence", "succeeded")
    assert (told["execution_id"], told["attempt"]) == (what.execution_id, 1)
    assert told["reason"] == "given by ops, event e1"


async def test_an_error_settles_it_as_a_failure_that_looks_like_a_live_one(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    assert await give_error(ledger, what, "declined", declared=lambda _: NUMBERED) is True
    row = row_of(ledger, what)
    assert (row.state, row.reason) == (State.FAILED, Reason.EVIDENCE.value)
    assert ledger.first(rows.stored_snapshot(what.execution_id, 1)) == encode({"error": "declined"})


async def test_nothing_is_a_result_too(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    assert await give(ledger, what, None) is True
    assert ledger.first(rows.stored_snapshot(what.execution_id, 1)) == encode(None)


async def test_exactly_one_of_result_and_error_is_given(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    with pytest.raises(TypeError):
        await give(ledger, what, "paid", error="declined")
    with pytest.raises(TypeError):
        await submit(ledger, execution_id=what.execution_id, attempt=1, source="ops", event="e",
                     settings=SETTINGS)  # fmt: skip
    assert unchanged(ledger, what)


async def test_c30_a_deleted_sessions_attempt_can_still_be_settled(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    ledger.run(verbs.tombstone, what.session_id, 5.0)
    assert await give(ledger, what) is True


# -- who may
@pytest.mark.parametrize("source", ["mail", "nobody", "", "OPS", "ops ", "o\nps", "x" * 200])
async def test_a_source_without_the_right_is_refused(ledger: Ledger, source: str) -> None:
    what = in_state(ledger, State.UNKNOWN)
    with pytest.raises(NotAllowed, match=r"durable\.toml") as caught:
        await give(ledger, what, source=source)
    assert len(str(caught.value)) < 500
    assert unchanged(ledger, what)


async def test_without_a_file_nobody_may(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    with pytest.raises(NotAllowed):
        await give(ledger, what, settings=Settings())
    assert unchanged(ledger, what)


@pytest.mark.parametrize(
    ("tool", "source", "may"),
    [
        (ToolIdentity(source="mcp:bank", name="mcp__bank__pay"), "bank", True),
        (ToolIdentity(source="mcp:bank", name="mcp__bank__pay"), "ops", False),
        (ToolIdentity(source="mcp:bank2", name="mcp__bank2__pay"), "bank", False),
        (ToolIdentity(source="own", name="pay"), "ops", True),
        (ToolIdentity(name="pays"), "ops", False),
    ],
)
async def test_the_right_is_that_of_the_rows_exact_tool(
    ledger: Ledger, tool: ToolIdentity, source: str, may: bool
) -> None:
    what = intent().model_copy(update={"tool": tool})
    ledger.run(verbs.dispatch, what, item(), ME, 1.0)
    ledger.run(verbs.lose, what.execution_id, 1, ME, Reason.OWNER_DIED, 2.0)
    if may:
        assert await give(ledger, what, source=source) is True
    else:
        with pytest.raises(NotAllowed):
            await give(ledger, what, source=source)


async def test_who_has_no_right_learns_not_even_whether_the_attempt_exists(ledger: Ledger) -> None:
    with pytest.raises(NotAllowed):
        await give(ledger, intent("none"), source="nobody")


async def test_the_right_to_give_evidence_is_none_to_decide(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    await give(ledger, what)
    row = row_of(ledger, what)
    assert (row.decision, row.decided_by) == (None, "")


# -- which attempt
@pytest.mark.parametrize("state", [State.DISPATCHED, None])
async def test_only_an_exact_unknown_attempt_is_settled(
    ledger: Ledger, state: State | None
) -> None:
    what = intent() if state is None else in_state(ledger, state)
    with pytest.raises(Refused):
        await give(ledger, what)
    assert said(ledger) == [] if state else not ledger.path.exists() or said(ledger) == []


async def test_another_attempts_number_is_another_attempt(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    for attempt in (0, 2, -1):
        with pytest.raises(Refused):
            await give(ledger, what, attempt=attempt)
    assert unchanged(ledger, what)


@pytest.mark.parametrize("decision", [Decision.HAPPENED, Decision.DROP, Decision.RETRY])
async def test_c20_what_a_person_decided_stands(ledger: Ledger, decision: Decision) -> None:
    what = decided(ledger, decision)
    before = row_of(ledger, what)
    with pytest.raises(AlreadyDecided):
        await give(ledger, what)
    assert row_of(ledger, what) == before


async def test_an_attempt_with_a_next_one_is_settled_no_more(ledger: Ledger) -> None:
    what = decided(ledger, Decision.RETRY)
    ledger.run(verbs.retry, what, ME, 5.0)
    with pytest.raises(AlreadyDecided):
        await give(ledger, what)
    with pytest.raises(Refused):
        await give(ledger, what, attempt=2)


async def test_an_attempt_of_a_newer_protocol_is_left_alone(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    with plain(ledger.path) as conn:
        conn.execute("UPDATE tool_executions SET protocol_version = 99")
    with pytest.raises(Refused):
        await give(ledger, what)
    assert said(ledger) == []


# -- the same again, and another one
async def test_the_same_event_again_converges(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    assert await give(ledger, what) is True
    before = (row_of(ledger, what), audits(ledger.path), said(ledger))
    assert await give(ledger, what, clock=lambda: 99.0) is False
    assert (row_of(ledger, what), audits(ledger.path), said(ledger)) == before


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"event": "e2"}, AlreadyDecided),
        ({"source": "bank"}, AlreadyDecided),
        ({"result": "other"}, AlreadyRecorded),
        ({"event": "e2", "result": "other"}, AlreadyDecided),
    ],
)
async def test_a_different_one_after_it_is_refused(
    ledger: Ledger, more: dict[str, Any], error: type[Refused]
) -> None:
    what = in_state(ledger, State.UNKNOWN)
    await give(ledger, what)
    before = (row_of(ledger, what), said(ledger))
    with pytest.raises(error):
        await give(ledger, what, **more)
    assert (row_of(ledger, what), said(ledger)) == before


async def test_an_event_speaks_of_one_attempt(ledger: Ledger) -> None:
    first, second = (in_state(ledger, State.UNKNOWN, call) for call in ("c1", "c2"))
    await give(ledger, first)
    with pytest.raises(AlreadyRecorded):
        await give(ledger, second)
    assert row_of(ledger, second).undecided
    assert await give(ledger, second, event="e2") is True


async def test_an_error_with_the_text_of_a_result_is_another_statement(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    await give(ledger, what, {"error": "x"})
    with pytest.raises(AlreadyRecorded):
        await give_error(ledger, what, "x")


# -- what is checked
async def test_a_result_has_to_pass_the_declared_output(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    asked: list[str] = []

    def declared(key: str) -> Any:
        asked.append(key)
        return NUMBERED

    with pytest.raises(ResultRefused, match="required"):
        await give(ledger, what, {}, declared=declared)
    assert unchanged(ledger, what)
    assert await give(ledger, what, {"number": 1}, declared=declared) is True
    assert asked == ["pay", "pay"]


async def test_the_persons_output_goes_before_the_authors(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    person = Settings(outputs={"pay": {"type": "string"}}, sources=SETTINGS.sources)
    with pytest.raises(ResultRefused, match="type"):
        await give(ledger, what, {"number": 1}, settings=person, declared=lambda _: NUMBERED)
    assert await give(ledger, what, "x", settings=person, declared=lambda _: NUMBERED) is True


async def test_an_output_that_cannot_be_used_settles_nothing(ledger: Ledger) -> None:
    what = in_state(ledger, State.UNKNOWN)
    with pytest.raises(PolicyError):
        await give(ledger, what, declared=lambda _: {"type": "objct"})
    assert unchanged(ledger, what)


@pytest.mark.parametrize("result", [b"x", float("nan"), {"a": {1: 2}}, ["x" * 5_000_000]])
async def test_where_none_is_declared_shape_and_size_are_checked(
    ledger: Ledger, result: Any
) -> None:
    what = in_state(ledger, State.UNKNOWN)
    for giving in (give(ledger, what, result), give_error(ledger, what, result)):
        with pytest.raises(ResultRefused):
            await giving
    assert unchanged(ledger, what)


@pytest.mark.parametrize("event", ["", "a b", "a\nb", "\u00e9", "\ud800", "x" * (MAX_EVENT + 1)])
async def test_an_events_id_is_short_and_plain(ledger: Ledger, event: str) -> None:
    what = in_state(ledger, State.UNKNOWN)
    with pytest.raises(ResultRefused):
        await give(ledger, what, event=event)
    assert unchanged(ledger, what)
    assert await give(ledger, what, event="x" * MAX_EVENT) is True


# -- what is told
def everything_but_the_snapshot(path: Path) -> str:
    found: list[Any] = [*audits(path), *table(path, "execution_evidence")]
    for row in table(path, "tool_executions"):
        found.append({k: v for k, v in row.items() if k != "snapshot"})
    return json.dumps(found, default=str)


async def test_g10_c24_nothing_that_was_given_is_told(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    first, second, third = (in_state(ledger, State.UNKNOWN, f"c{n}") for n in range(3))
    await give(ledger, first, {"number": CANARY})
    await give_error(ledger, third, CANARY, event="e9")
    told = ""
    for giving in (
        give(ledger, first, {CANARY: CANARY}),
        give(ledger, first, {CANARY: CANARY}, event="e3"),
        give(ledger, second, {CANARY: CANARY}, declared=lambda _: NUMBERED),
        give(ledger, second, {CANARY: float("nan")}),
        give(ledger, second, CANARY, source="nobody"),
        give(ledger, intent("none"), CANARY),
    ):
        with pytest.raises(Exception) as caught:
            await giving
        told += "".join(traceback.format_exception_only(caught.type, caught.value))
        told += repr(caught.value.__dict__)
    assert CANARY not in everything_but_the_snapshot(ledger.path)
    assert CANARY not in told + caplog.text
