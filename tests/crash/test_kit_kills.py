"""The crash kit: a kill kills, a restart finds what is on disk, the host alone shows its faults."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openworker_durable.states import Decision, State
from openworker_durable.testing import (
    CRASH_POINTS,
    CrashLab,
    EffectService,
    Fail,
    Kill,
    Scenario,
    check_invariants,
    every_kill,
    one_call,
    one_turn,
    reply,
)

pytestmark = pytest.mark.crash


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CrashLab]:
    with EffectService() as service:
        yield CrashLab(tmp_path, service)


# -- kills
def test_a_kill_is_a_real_kill(lab: CrashLab) -> None:
    outcome = lab.run(one_turn(lab.folder(), kill=Kill("in_tool_after_effect")))
    assert outcome.exit_code == -signal.SIGKILL
    assert (outcome.killed, outcome.ended_by, outcome.told) == (True, "SIGKILL", {})
    assert outcome.count("k") == 1
    assert [r.state for r in outcome.rows] == [State.DISPATCHED]


def test_a_place_that_is_never_reached_kills_nobody(lab: CrashLab) -> None:
    outcome = lab.run(one_turn(lab.folder(), kill=Kill("in_tool_after_effect", 2)))
    assert (outcome.exit_code, outcome.killed) == (0, False)
    assert outcome.hits["in_tool_after_effect"] == 1


@pytest.mark.parametrize("kill", [Kill("any", 5), Kill("call", 100)])
def test_a_count_can_be_the_place(lab: CrashLab, kill: Kill) -> None:
    assert lab.run(one_turn(lab.folder(), kill=kill)).killed


def test_a_process_can_be_killed_from_outside(lab: CrashLab) -> None:
    hold = lab.service.hold("k")
    child = lab.start(one_turn(lab.folder()))
    assert hold.arrived.wait(20)
    child.kill()
    outcome = child.wait()
    assert (outcome.ended_by, outcome.count("k")) == ("SIGKILL", 0)
    assert [r.state for r in outcome.rows] == [State.DISPATCHED]


def test_a_process_that_hangs_is_ended_and_shows_its_stacks(lab: CrashLab) -> None:
    lab.seconds = 4
    hold = lab.service.hold("k")
    child = lab.start(one_turn(lab.folder()))
    assert hold.arrived.wait(20)
    outcome = child.wait(lab.seconds)
    assert (outcome.hung, outcome.killed, outcome.ended_by) == (True, False, "hung")
    assert "post" in outcome.trace
    assert any("hung" in fault for fault in check_invariants(outcome, settled=False))


def test_a_process_that_fails_says_why(lab: CrashLab) -> None:
    scenario = replace(one_turn(lab.folder()), steps=(("message",),))
    outcome = lab.run(scenario)
    assert outcome.exit_code == 0
    assert any("TypeError" in error for error in outcome.errors)


# -- the six crash points
ALONE = {
    "prompt": dict(zip(CRASH_POINTS, (1, 1, 2, 2, 2, 1), strict=True)),
    "grant": dict(zip(CRASH_POINTS, (0, 0, 1, 1, 1, 1), strict=True)),
}
DURABLE = dict(zip(CRASH_POINTS, (1, 0, 1, 1, 1, 1), strict=True))


@pytest.mark.parametrize("place", CRASH_POINTS)
@pytest.mark.parametrize("by", ["prompt", "grant"])
def test_the_host_alone_repeats_or_forgets(lab: CrashLab, by: str, place: str) -> None:
    scenario = one_turn(lab.folder(), durable=False, authorised_by=by, kill=Kill(place))
    assert lab.run(scenario).killed
    outcome = lab.run(scenario.then())
    assert outcome.count("k") == ALONE[by][place]
    known = any(m.get("tool_calls") for m in outcome.thread)
    assert known == (by == "prompt" or place == "after_save")
    harmless = place in ("after_approval", "in_tool_before_effect", "after_save")
    assert bool(check_invariants(outcome)) != harmless


@pytest.mark.parametrize("place", CRASH_POINTS)
@pytest.mark.parametrize("by", ["prompt", "grant"])
def test_the_plugin_does_neither(lab: CrashLab, by: str, place: str) -> None:
    scenario = one_turn(lab.folder(), authorised_by=by, kill=Kill(place))
    assert lab.run(scenario).killed
    outcome = lab.run(scenario.then())
    assert check_invariants(outcome) == []
    assert outcome.count("k") == DURABLE[place]
    asked = place in ("in_tool_before_effect", "in_tool_after_effect")
    assert len(outcome.pending("recovery_required")) == asked


# -- every place
def test_every_kill_visits_each_place_once_for_each_time_it_is_reached(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder())
    clean = lab.run(replace(scenario, state_dir=lab.folder()))
    killed = list(every_kill(lab, scenario, CRASH_POINTS))
    wanted = {(p, n) for p in CRASH_POINTS for n in range(1, clean.hits[p] + 1)}
    assert {(s.kill.place, s.kill.nth) for s in killed if s.kill} == wanted
    assert len({s.state_dir for s in killed}) == len(killed)
    assert not scenario.state_dir.exists()


def test_every_kill_of_a_recovery_begins_from_the_same_state(lab: CrashLab) -> None:
    first = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
    lab.run(first)
    recovery = first.then(("start_gateway",), ("decide", "*", "retry", "inbox"))
    for scenario in every_kill(lab, recovery, ("commit.after:retry", "followup.before")):
        outcome = lab.run(scenario)
        assert outcome.killed
        assert outcome.effects[0].key == "k"
        assert check_invariants(lab.run(scenario.then())) == []
    assert lab.look(first).count("k") == 1


def test_every_kill_refuses_a_scenario_that_fails_by_itself(lab: CrashLab) -> None:
    broken = replace(one_turn(lab.folder()), steps=(("message",),))
    with pytest.raises(RuntimeError, match="fails without a kill"):
        next(every_kill(lab, broken))


# -- steps
def test_a_restarted_process_goes_on_where_the_thread_stands(lab: CrashLab) -> None:
    replies = (*one_call(key="a"), *one_call(key="b", call_id="call_0"))
    scenario = one_turn(lab.folder(), replies, kill=Kill("tool_returned"))
    lab.run(scenario)
    outcome = lab.run(scenario.then(("start_gateway",), ("resume",), ("message", "more")))
    assert [e.key for e in outcome.effects] == ["a", "b"]
    assert check_invariants(outcome) == []


@pytest.mark.parametrize(
    ("approvals", "times", "parked"), [("allow", 1, 0), ("deny", 0, 0), ("leave", 0, 1)]
)
def test_prompts_are_answered_as_told(
    lab: CrashLab, approvals: str, times: int, parked: int
) -> None:
    outcome = lab.run(one_turn(lab.folder(), approvals=approvals))
    assert (outcome.count("k"), len(outcome.pending("approval"))) == (times, parked)


def test_a_prompt_that_was_left_can_be_answered_later(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder(), approvals="leave")
    lab.run(scenario)
    outcome = lab.run(scenario.then(("start_gateway",), ("answer", "allow")))
    assert outcome.count("k") == 1
    assert check_invariants(outcome) == []


@pytest.mark.parametrize("surface", ["inbox", "ledger"])
@pytest.mark.parametrize(
    ("word", "times", "decision"),
    [
        ("happened", 1, Decision.HAPPENED),
        ("retry", 2, Decision.RETRY),
        ("drop", 1, Decision.DROP),
        ("unsure", 1, None),
        ("seen", 1, None),
    ],
)
def test_a_decision_by_either_surface(
    lab: CrashLab, surface: str, word: str, times: int, decision: Decision | None
) -> None:
    scenario = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    decide = ("decide", "call_0", word, surface)
    outcome = lab.run(scenario.then(("start_gateway",), decide, poll_seconds=0.02))
    assert check_invariants(outcome) == []
    assert (outcome.count("k"), outcome.rows[0].decision) == (times, decision)


def test_stop_leaves_a_thread_that_works(lab: CrashLab) -> None:
    replies = (reply(*((f"c{n}", "send", {"to": "ann", "key": f"k{n}"}) for n in (1, 2))), "done")
    steps = (
        ("start_gateway",), ("begin", "message", "go"), ("until", "in_tool_before_effect", 1),
        ("stop",), ("settle",), ("message", "and now?"),
    )  # fmt: skip
    outcome = lab.run(Scenario(lab.folder(), replies, steps, authorised_by="grant"))
    assert [e.key for e in outcome.effects] == ["k1"]
    assert outcome.events("interrupted")
    assert check_invariants(outcome) == []


def test_a_cancelled_turn_leaves_its_call_running(lab: CrashLab) -> None:
    steps = (
        ("start_gateway",), ("begin", "message", "go"), ("until", "in_tool_before_effect", 1),
        ("cancel",), ("settle",), ("resume",),
    )  # fmt: skip
    outcome = lab.run(Scenario(lab.folder(), one_call(), steps))
    assert outcome.count("k") == 1
    assert check_invariants(outcome) == []


def test_a_failing_model_is_asked_again(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder(), (Fail("500"), *one_call()))
    scenario = replace(scenario, steps=(*scenario.steps, ("retry_button",)))
    outcome = lab.run(scenario)
    assert outcome.provider_errors == ["RuntimeError: 500"]
    assert outcome.count("k") == 1
    assert check_invariants(outcome) == []


def test_a_deleted_session_can_still_be_settled(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    deleted = lab.run(scenario.then(("start_gateway",), ("delete_session",), ("settle",)))
    assert deleted.thread == []
    outcome = lab.run(scenario.then(("start_gateway",), ("decide", "*", "happened", "inbox")))
    assert [r.decision for r in outcome.rows] == [Decision.HAPPENED]
    assert check_invariants(outcome) == []


def test_compaction_hides_the_call_from_the_model_and_not_from_recovery(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder(), (*one_call(), "well"), kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    lab.run(scenario.then(("start_gateway",), ("message", "go on"), ("compact", 3, "summary")))
    outcome = lab.run(scenario.then(("start_gateway",), ("decide", "*", "retry", "inbox")))
    assert outcome.count("k") == 2
    assert check_invariants(outcome) == []


def test_detaching_leaves_the_host_alone(lab: CrashLab) -> None:
    replies = (*one_call(key="a", call_id="a"), *one_call(key="b", call_id="b"))
    scenario = one_turn(lab.folder(), replies)
    steps = (*scenario.steps, ("detach",), ("message", "more"))
    outcome = lab.run(replace(scenario, steps=steps))
    assert [(e.key, bool(e.execution_id)) for e in outcome.effects] == [("a", True), ("b", False)]


def test_a_commit_that_fails_is_written_later(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder(), breaks=(("commit.before:finish", 1),))
    outcome = lab.run(scenario)
    assert outcome.count("k") == 1
    assert [r.state for r in outcome.rows] == [State.SUCCEEDED]
    assert any("outcome kept for later" in line for line in outcome.told["logs"])
