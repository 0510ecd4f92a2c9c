"""C18, C19 and G12: what counts as a decision, and what the person is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable import texts
from openworker_durable.models import Execution
from openworker_durable.review import (
    LABELS,
    Word,
    decisions_offered,
    draft,
    item_key,
    read_decision,
    why_words,
)
from openworker_durable.snapshot import Snapshot
from openworker_durable.states import Decision, Reason, State

CANARY = "cnry7Q"


def row(**more: Any) -> Execution:
    values: dict[str, Any] = {
        "execution_id": "x1", "attempt": 2, "session_id": "s", "incarnation": "i",
        "tool_call_id": "call_1", "tool_source": "host", "tool_name": "pay", "tool_version": "",
        "tool_account": "", "prepared": "", "probes": 0, "found": "",
        "schema_digest": "", "intent_digest": "d", "preview": "to: bob · amount: 10",
        "policy": "manual", "authority_kind": None, "authority_ref": "", "occurrence": "",
        "linked": "", "owner": "me", "protocol_version": 1, "state": State.UNKNOWN,
        "reason": Reason.OWNER_DIED.value, "detail": CANARY, "dispatched_at": 1.0,
        "ended_at": None, "snapshot_digest": None, "lossy": False, "decision": None,
        "decided_by": "", "decided_at": None, "decision_note": CANARY, "probe_at": None,
        "acknowledged_at": None, "superseded": False,
    }  # fmt: skip
    return Execution.model_validate(values | more)


@pytest.mark.parametrize("decision", Decision)
def test_the_exact_words_count(decision: Decision) -> None:
    assert read_decision(decision.value) == Word(decision)
    assert read_decision(LABELS[decision]) == Word(decision)
    assert read_decision(json.dumps({"decision": decision.value})) == Word(decision)
    noted = json.dumps({"decision": decision.value, "note": "saw it"})
    assert read_decision(noted) == Word(decision, "saw it")


NO_DECISIONS: list[Any] = [
    " Deny", "", "session deleted", "seen", "allow", "once", "approve", "yes", "deny", "always",
    "always_tool", "readonly_session", "dismissed", "timeout", "stopped",
    " retry", "retry ", "Retry", "RETRY", "retry\n", '"retry"', "it happened", "It happened.",
    "Decision.RETRY", "happened retry", "x" * 2_000_000, "1" * 5_000,
    [], ["retry"], {}, {"decision": "retry"}, None, True, 1, b"retry",
    "[]", '["retry"]', "null", "1", "{}", '{"note": "retry"}', '{"decision": null}',
    '{"decision": true}', '{"decision": "Retry"}', '{"decision": " retry"}',
    '{"decision": "allow"}', '{"decision": "retry", "note": 1}',
    '{"decision": "retry", "note": null}', '{"decision": "retry", "more": 1}',
    '{"Decision": "retry"}', '{"decision": "retry"', '{"decision": "retry"} x',
]  # fmt: skip


@pytest.mark.parametrize("resolution", NO_DECISIONS, ids=lambda r: repr(r)[:40])
def test_c18_c19_anything_else_is_no_decision(resolution: Any) -> None:
    assert read_decision(resolution) is None


@pytest.mark.parametrize(
    "resolution",
    ['{"decision": ["retry"]}', '{"decision": {"retry": 1}}', "[" * 100_000],
    ids=["list", "object", "deep"],
)
def test_c19_odd_json_is_refused_and_never_an_exception(resolution: str) -> None:
    assert read_decision(resolution) is None


@given(st.text())
def test_c19_no_other_text_is_a_decision(text: str) -> None:
    words = {d.value for d in Decision} | set(LABELS.values())
    assert (read_decision(text) is not None) is (text in words)


def test_draft_asks_in_plain_words_with_four_answers() -> None:
    item = draft(row())
    assert item.title == "Did pay happen?"
    assert "to: bob · amount: 10" in item.body
    assert "attempt 2" in item.body
    assert item.options == tuple(LABELS.values())
    assert item.data["recovery"] == {
        "execution_id": "x1", "attempt": 2, "tool_call_id": "call_1", "tool": "pay",
        "reason": "owner_died", "decisions": ["happened", "retry", "drop", "unsure"],
    }  # fmt: skip
    assert all(read_decision(option) for option in item.options)


@pytest.mark.parametrize("reason", [Reason.CHANGED, Reason.LOST_THREAD])
def test_c07_draft_of_a_changed_or_lost_call_offers_no_retry(reason: Reason) -> None:
    found = row(reason=reason.value)
    assert Decision.RETRY not in decisions_offered(found)
    item = draft(found)
    assert LABELS[Decision.RETRY] not in item.options
    assert "retry" not in item.data["recovery"]["decisions"]


def test_rule_1_draft_of_a_newer_row_offers_nothing_and_names_the_remedy() -> None:
    item = draft(row(protocol_version=99, state="quantum"))
    assert item.options == ()
    assert "Upgrade" in item.body


@pytest.mark.parametrize("reason", [*Reason, "new_word"])
def test_g12_draft_never_claims_more_than_is_known(reason: str) -> None:
    found = row(reason=str(getattr(reason, "value", reason)))
    body = draft(found).body
    assert "may have happened" in body
    assert why_words(found) in body
    for claim in ("rejected", "completed", "was sent", "succeeded"):
        assert claim not in body


def test_c24_g10_draft_holds_no_detail_note_or_result() -> None:
    item = draft(row())
    assert CANARY not in json.dumps([item.title, item.body, item.data, item.options])


def test_item_keys_of_attempts_and_generations_differ() -> None:
    keys = {item_key(e, a, g) for e in ("x1", "x2") for a in (1, 2, 11) for g in (1, 2, 11)}
    assert len(keys) == 18


# -- what the model is told
def test_g12_texts_for_unknown_calls_say_may_have_happened() -> None:
    for text in (texts.provisional("pay"), texts.still_running("pay"), texts.repeat_warning(row())):
        assert "may have happened" in text
    for text in (texts.provisional("pay"), texts.still_running("pay")):
        assert "Do not repeat it" in text
    for text in (texts.not_started("pay"), texts.refused("disk full")):
        assert "Nothing was done" in text
    assert "disk full" in texts.refused("disk full")


@pytest.mark.parametrize(
    ("kind", "outcome", "wants", "lacks"),
    [
        ("happened", None, ["a person says that it happened", "Do not repeat"], ["succeeded"]),
        ("drop", None, ["did not happen", "Do not repeat"], ["failed"]),
        ("retry", State.SUCCEEDED, ["run once more", "It succeeded", "the text"], ["failed"]),
        ("retry", State.FAILED, ["run once more", "It failed", "the text"], ["succeeded"]),
        ("retry", State.UNKNOWN, ["run once more", "may have happened"], ["the text"]),
        ("outcome", State.SUCCEEDED, ["now known", "It succeeded", "the text"], ["once more"]),
        ("outcome", State.FAILED, ["now known", "It failed", "the text"], ["once more"]),
    ],
)
def test_g12_follow_up_texts(
    kind: str, outcome: State | None, wants: list[str], lacks: list[str]
) -> None:
    after = row(state=outcome) if outcome else None
    text = texts.follow_up(row(), kind, after, Snapshot("the text"))
    assert "the earlier pay call (to: bob · amount: 10)" in text
    for want in wants:
        assert want in text
    for lack in lacks:
        assert lack not in text
    card = texts.follow_up_card(row(), kind, after)
    assert "pay" in card
    assert "the text" not in card


def test_g12_follow_up_without_a_stored_result_says_so() -> None:
    text = texts.follow_up(row(), "outcome", row(state=State.SUCCEEDED), None)
    assert "Its result is not available" in text
