"""Every failpoint there is can be reached, and a kill at each does no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openworker_durable.failpoints import FAILPOINTS
from openworker_durable.testing import (
    PLACES,
    CrashLab,
    EffectService,
    Kill,
    Scenario,
    check_invariants,
    one_turn,
)

pytestmark = pytest.mark.crash

Way = Callable[[CrashLab], Scenario]
DECIDE = (("start_gateway",), ("resume",), ("decide", "*", "retry", "inbox"), ("settle",))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CrashLab]:
    with EffectService() as service:
        yield CrashLab(tmp_path, service)


def first_time(lab: CrashLab) -> Scenario:
    """Return a call that nothing happens to."""
    return one_turn(lab.folder())


def unknown_and_retried(lab: CrashLab) -> Scenario:
    """Return the recovery of a call that was cut short, decided `retry`."""
    scenario = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    return scenario.then(*DECIDE)


def of_the_host_alone(lab: CrashLab) -> Scenario:
    """Return the recovery of a call that the host made before the plugin was there."""
    scenario = one_turn(lab.folder(), durable=False, kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    return scenario.then(*DECIDE, durable=True)


def in_the_thread_only(lab: CrashLab) -> Scenario:
    """Return the recovery of a call whose result was saved although its row could not be."""
    breaks = (("commit.before:finish", 99),)
    scenario = one_turn(lab.folder(), breaks=breaks, kill=Kill("after_save"))
    lab.run(scenario)
    return scenario.then()


ELSEWHERE = ("probe.", *(f":{verb}" for verb in (
    "schedule_probe", "postpone", "begin_probe", "end_probe", "end_probes", "found_absent",
    "found_out", "give_evidence", "rebind",
)))  # fmt: skip
"""Places of probes and evidence: a kill at each is in test_kit_policies.py."""

REACHABLE = tuple(p for p in PLACES if not any(e in p for e in ELSEWHERE))

WAYS: tuple[Way, ...] = (first_time, unknown_and_retried, of_the_host_alone, in_the_thread_only)

REACHED_BY: dict[str, Way] = {
    **dict.fromkeys(PLACES, first_time),
    **dict.fromkeys(
        (
            "repair.before", "repair.after", "item.before", "item.after", "followup.before",
            "followup.after",
            *(f"commit.{when}:{verb}" for when in ("before", "after")
              for verb in ("lose", "decide", "retry")),
        ),
        unknown_and_retried,
    ),
    **dict.fromkeys(("commit.before:vouch", "commit.after:vouch"), of_the_host_alone),
    **dict.fromkeys(
        ("commit.before:found_in_thread", "commit.after:found_in_thread"), in_the_thread_only
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", REACHABLE)
def test_a_kill_at_every_place_does_no_harm(lab: CrashLab, place: str) -> None:
    scenario = replace(REACHED_BY[place](lab), kill=Kill(place))
    assert lab.run(scenario).killed, f"{place} is not reached"
    outcome = lab.run(scenario.then())
    assert check_invariants(outcome) == []


@pytest.mark.parametrize("way", WAYS)
def test_without_a_kill_each_way_ends_well(lab: CrashLab, way: Way) -> None:
    outcome = lab.run(way(lab))
    assert outcome.exit_code == 0
    assert check_invariants(outcome) == []


def test_no_failpoint_is_left_out() -> None:
    assert set(FAILPOINTS) <= set(REACHED_BY)
