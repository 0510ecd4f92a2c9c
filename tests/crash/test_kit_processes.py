"""Two real processes over one state folder: one owner, one driver, and nothing written over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openworker_durable.states import Reason, State
from openworker_durable.testing import (
    CrashLab,
    EffectService,
    Kill,
    Scenario,
    check_invariants,
    one_call,
    one_turn,
)

pytestmark = pytest.mark.crash


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CrashLab]:
    with EffectService() as service:
        yield CrashLab(tmp_path, service)


def test_a_live_owners_call_is_left_alone(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder())
    hold = lab.service.hold("k", after=True)
    first = lab.start(scenario)
    assert hold.arrived.wait(20)
    second = lab.run(scenario.then(("start_gateway",), ("resume",), ("message", "hello?")))
    assert [r.state for r in second.rows] == [State.DISPATCHED]
    assert second.pending("recovery_required") == []
    assert {e["error_type"] for e in second.events("error")} == {"SessionHeld"}
    assert check_invariants(second, settled=False) == []
    hold.release()
    outcome = first.wait()
    assert (outcome.count("k"), [r.state for r in outcome.rows]) == (1, [State.SUCCEEDED])
    assert check_invariants(lab.run(scenario.then())) == []


def test_when_the_owner_dies_the_other_process_asks_once(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder())
    hold = lab.service.hold("k", after=True)
    first = lab.start(scenario)
    assert hold.arrived.wait(20)
    steps = (("start_gateway",), ("pause", "started"), ("expect", "item.after", 1), ("settle",))
    second = lab.start(scenario.then(*steps, poll_seconds=0.02))
    assert second.paused("started")
    first.kill()
    assert first.wait().killed
    second.go("started")
    outcome = second.wait()
    assert [r.reason for r in outcome.rows] == [Reason.OWNER_DIED.value]
    assert len(outcome.pending("recovery_required")) == 1
    assert check_invariants(outcome) == []


@pytest.mark.parametrize("place", ["after_approval", "in_tool_after_effect", "tool_returned"])
def test_two_processes_that_resume_at_once_do_it_once(lab: CrashLab, place: str) -> None:
    for _ in range(8):
        scenario = one_turn(lab.folder(), kill=Kill(place))
        lab.run(scenario)
        together = [lab.start(scenario.then()) for _ in range(2)]
        faults = [f for child in together for f in check_invariants(child.wait(), settled=False)]
        assert faults == []
        outcome = lab.run(scenario.then())
        assert outcome.count("k") == 1
        assert check_invariants(outcome) == []


def test_a_process_that_may_not_drive_a_session_writes_nothing_over_it(lab: CrashLab) -> None:
    """The second process holds the thread as it was; it must not save that over the newer one."""
    steps = (("start_gateway",), ("message", "hi"), ("pause", "idle"), ("message", "and now?"))
    stale = Scenario(
        lab.folder(), ("hello", *one_call()), steps, authorised_by="grant", poll_seconds=0.02
    )
    second = lab.start(stale)
    assert second.paused("idle")
    hold = lab.service.hold("k", after=True)
    first = lab.start(stale.then(("start_gateway",), ("message", "send it")))
    assert hold.arrived.wait(20)
    before = lab.look(stale).thread
    assert [m["role"] for m in before] == ["user", "assistant", "user", "assistant"]
    second.go("idle")
    refused = second.wait()
    assert {e["error_type"] for e in refused.events("error")} == {"SessionHeld"}
    assert refused.thread == before
    hold.release()
    assert check_invariants(first.wait()) == []


def test_g2_who_takes_over_reads_what_the_dead_process_saved(lab: CrashLab) -> None:
    """The second process opened the session before it had a line, and sweeps when it may."""
    steps = (("start_gateway",), ("pause", "first"), ("message", "send it"))
    doomed = one_turn(lab.folder(), kill=Kill("tool_returned"), poll_seconds=0.02)
    first = lab.start(replace(doomed, steps=steps))
    assert first.paused("first")
    opened = (("start_gateway",), ("retry_button",), ("pause", "idle"))
    second = lab.start(doomed.then(*opened, ("expect", "commit.after:acknowledge"), ("settle",)))
    assert second.paused("idle")
    first.go("first")
    assert first.wait().killed
    second.go("idle")
    outcome = second.wait()
    assert check_invariants(outcome) == []
    assert [m["role"] for m in outcome.thread] == ["user", "assistant", "tool"]
    after = lab.run(doomed.then(("start_gateway",), ("message", "and now?")))
    assert check_invariants(after) == []
    assert after.count("k") == 1
