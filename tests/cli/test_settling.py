"""What the commands say of policies, probes and evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import finding, verbs
from openworker_durable.cli_words import policy_words
from openworker_durable.models import Authority, Evidence, Intent, Outcome, ToolIdentity
from openworker_durable.policy import RecoveryPolicy, idempotent, manual, reconcile
from openworker_durable.snapshot import encode
from openworker_durable.states import AuthorityKind, Decision, Reason, State
from tests.cli.records import AT, CANARY, OWNER, Record, record, run, run_json, xid

KEYED = idempotent(key_valid=86400)
LOOKED_UP = reconcile(then=KEYED)
TOOL = ToolIdentity(source="mcp:bank", name="mcp__bank__pay", version="7", account="ann")
Way = Callable[[Record, tuple[str, int]], object]


def ended(reason: Reason, state: State = State.SUCCEEDED) -> Outcome:
    return Outcome(state=state, reason=reason, snapshot=encode({"number": CANARY}))


def ends(word: str, note: str, next_at: float | None) -> Way:
    return lambda r, key: r.ledger.run(finding.end_probe, *key, 1, word, note, next_at)


def by_probe(r: Record, key: tuple[str, int]) -> None:
    r.ledger.run(finding.found_out, *key, 1, ended(Reason.RECONCILED), "happened", AT + 6)


def by_evidence(r: Record, key: tuple[str, int]) -> None:
    word = Evidence(source="ops", event="e-77", outcome=ended(Reason.EVIDENCE))
    r.ledger.run(finding.give_evidence, *key, word, AT + 6)


def too_late(r: Record, key: tuple[str, int]) -> None:
    r.decide("p1", Decision.DROP)
    by_probe(r, key)


def made(state: Path, policy: RecoveryPolicy, *ways: Way, probed: bool = True) -> Path:
    """Make a record with one call that was lost, and what came of it."""
    with record(state) as r:
        what = r.intent("p1").model_copy(update={"tool": TOOL, "policy": str(policy)})
        allowed = Authority(kind=AuthorityKind.ITEM, ref="item-1")
        r.ledger.run(verbs.dispatch, what, allowed, OWNER, AT)
        r.lose("p1")
        if probed:
            r.ledger.run(finding.schedule_probe, what.execution_id, 1, AT + 2)
            r.ledger.run(finding.begin_probe, what.execution_id, 1, 0, AT + 60)
        for way in ways:
            way(r, (what.execution_id, 1))
    return state


def told(command: str, state: Path) -> str:
    result = run(command, "xp1", "--state", state)
    assert result.exit_code == 0
    return " ".join(result.stdout.split())


def attempt(state: Path, number: int = 1) -> Any:
    return run_json("show", "xp1", "--state", state)["attempts"][number - 1]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (manual(), "manual"),
        (manual(repeatable=True), "manual, may be called while unknown"),
        (KEYED, "idempotent, key valid for 86400 seconds, at most 3 attempts"),
        (reconcile(), "reconcile"),
        (reconcile(attempts=2), "reconcile, at most 2 attempts"),
        (LOOKED_UP, "reconcile, then idempotent, key valid for 86400 seconds, at most 3 attempts"),
    ],
)
def test_show_says_the_policy_in_words(tmp_path: Path, policy: RecoveryPolicy, words: str) -> None:
    state = made(tmp_path / "state", policy, probed=False)
    assert f"policy {words} " in told("show", state) + " "
    assert attempt(state)["policy"] == str(policy)


def test_g3_a_policy_that_cannot_be_read_is_shown_as_what_it_counts_for() -> None:
    assert policy_words("later") == "manual"


def test_show_says_whose_tool_it_was(tmp_path: Path) -> None:
    state = made(tmp_path / "state", manual(), probed=False)
    assert "mcp__bank__pay (from mcp:bank, version 7, for ann)" in told("show", state)
    assert run_json("show", "xp1", "--state", state)["tool"]["account"] == "ann"


def test_g12_a_call_that_is_looked_up_is_not_said_to_be_asked_about(tmp_path: Path) -> None:
    state = made(tmp_path / "state", LOOKED_UP, ends("pending", "the bank is at it", AT + 90))
    text = told("show", state)
    assert "state unknown: looked up" in text
    assert "probes 1 " in text
    assert "next probe 20" in text
    assert "found pending: the bank is at it" in text
    one = attempt(state)
    assert (one["state_words"], one["probes"]) == ("unknown: looked up", 1)
    assert (one["probe_at"], one["found"]) == (
        "2025-06-15T15:08:10.250Z", "pending: the bank is at it",
    )  # fmt: skip
    assert run_json("list", "--state", state)["executions"][0]["state_words"] == one["state_words"]


def test_when_the_lookups_are_used_up_a_person_is_asked_with_what_was_found(
    tmp_path: Path,
) -> None:
    state = made(tmp_path / "state", reconcile(), ends("cannot_tell", "no such page", None))
    text = told("show", state)
    assert "state unknown: a person is asked" in text
    assert "found cannot_tell: no such page" in text
    assert "next probe" not in text
    assert attempt(state)["probe_at"] is None


def test_of_a_call_that_nobody_looked_up_nothing_is_said_about_it(tmp_path: Path) -> None:
    state = made(tmp_path / "state", manual(), probed=False)
    text = told("show", state)
    assert not [word for word in ("probes", "next probe", "found") if f" {word} " in text]
    one = attempt(state)
    assert (one["probes"], one["probe_at"], one["found"]) == (0, None, "")


def test_what_a_probe_found_is_said_in_words(tmp_path: Path) -> None:
    state = made(tmp_path / "state", LOOKED_UP, by_probe)
    text = told("show", state)
    assert "state done" in text
    assert "why It was looked up afterwards." in text
    assert "found probe 1" in text
    assert "Came later" not in text
    events = run_json("history", "xp1", "--state", state)["events"]
    assert [(e["stage"], e["status"], e["reason"]) for e in events][-1] == (
        "probe", "succeeded", "probe 1: happened",
    )  # fmt: skip


def test_evidence_that_settled_an_attempt_did_not_come_too_late(tmp_path: Path) -> None:
    state = made(tmp_path / "state", manual(), by_evidence, probed=False)
    text = told("show", state)
    assert "why A named source said how it ended." in text
    assert "found evidence of ops" in text
    assert "Came later, changed nothing" not in text
    assert run_json("show", "xp1", "--state", state)["late_evidence"] == []
    assert "given by ops, event e-77" in told("history", state)


def test_c20_what_was_found_out_after_a_decision_is_shown_as_late(tmp_path: Path) -> None:
    state = made(tmp_path / "state", LOOKED_UP, too_late)
    text = told("show", state)
    assert "decided: leave it" in text
    assert "Came later, changed nothing attempt 1" in text
    late = run_json("show", "xp1", "--state", state)["late_evidence"]
    assert [(e["state"], e["reason"]) for e in late] == [("succeeded", "reconciled")]
    assert "contradicts the record" in told("history", state)


def test_an_attempt_by_policy_is_said_to_be_one(tmp_path: Path) -> None:
    def again(r: Record, key: tuple[str, int]) -> None:
        what: Intent = r.intent("p1").model_copy(update={"tool": TOOL, "policy": str(KEYED)})
        by = Authority(kind=AuthorityKind.POLICY)
        r.ledger.run(verbs.retry, what, OWNER, AT + 9, by)

    state = made(tmp_path / "state", KEYED, again, probed=False)
    text = told("show", state)
    assert "unknown, then run once more" in text
    assert "allowed by its recovery policy" in text
    assert attempt(state, 2)["authority"]["kind"] == "policy"
    assert "allowed by policy" in told("history", state)


@pytest.mark.parametrize("way", [by_probe, by_evidence, too_late])
def test_g10_c24_nothing_prints_what_was_found(tmp_path: Path, way: Way) -> None:
    state = made(tmp_path / "state", LOOKED_UP, way)
    assert CANARY.encode() in (state / "coworker.db").read_bytes() or way is too_late
    for command in ("show", "history"):
        for flag in ([], ["--json"]):
            assert CANARY not in run(command, xid("p1"), *flag, "--state", state).output


def test_what_a_reconciler_says_reaches_no_terminal_as_it_is(tmp_path: Path) -> None:
    """A note is text of somebody else's service."""
    way = ends("cannot_tell", "\x1b[31mred\x07 [bold]loud[/bold]", None)
    state = made(tmp_path / "state", LOOKED_UP, way)
    output = run("show", "xp1", "--state", state).stdout
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]loud[/bold]" in " ".join(output.split())
