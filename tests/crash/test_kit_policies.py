"""SIGKILL at every place on the way from an unknown outcome to its end without a person.

Each story is told once without a kill; then once for each place it reaches, killed there, in the
life in which the call was made or in the one after it. The end has to be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from openworker_durable.failpoints import FAILPOINTS
from openworker_durable.testing import (
    CrashLab,
    EffectService,
    Kill,
    Outcome,
    Scenario,
    check_invariants,
    every_kill,
    one_turn,
    reply,
)

pytestmark = pytest.mark.crash

TOOLS = "tests.crash.post_office:"
RECOVER = (("start_gateway",), ("settle",), ("resume",), ("settle",))


@dataclass(frozen=True)
class Story:
    """What happens to one call.

    Args:
        tool, mode: of the tools in `post_office`.
        ends: the states of its attempts, at the end.
        steps: what follows after the turn.
        asks: whether a person is asked in the end.
    """

    tool: str
    mode: str
    ends: tuple[str, ...]
    steps: tuple[tuple[object, ...], ...] = ()
    asks: bool = False
    effects: int = 1


STORIES = {
    "looked up": Story("post", "drop", ("succeeded",)),
    "looked up later": Story("wait", "drop", ("succeeded",)),
    "looked up twice": Story("post", "slow", ("succeeded",)),
    "proved absent, made again": Story("post", "lost", ("unknown", "succeeded")),
    "made again with its key": Story("stamp", "drop", ("unknown", "succeeded")),
    "not seen, then with its key": Story("both", "dark", ("unknown", "succeeded")),
    "a person, with what was found": Story("post", "dark", ("unknown",), asks=True),
    "by evidence": Story(
        "send", "", ("succeeded",), (("evidence", "c", "ops", "e-1", {"ok": True}),)
    ),
}  # fmt: skip

QUICK = {"poll_seconds": 0.01, "grace_seconds": 0.0}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CrashLab]:
    with EffectService() as service:
        yield CrashLab(tmp_path, service)


def told(lab: CrashLab, story: Story) -> Scenario:
    """Return the life in which the call of a story is made."""
    arguments = {"key": "k", "mode": story.mode}
    if story.tool == "send":
        arguments = {"key": "k", "to": "ann"}
    script = (reply(("c", story.tool, arguments)), "done")
    made = one_turn(lab.folder(), script, tools=f"{TOOLS}tools", **QUICK)
    return replace(made, steps=(*made.steps, ("settle",), *story.steps))


def before(lab: CrashLab, story: Story) -> Scenario:
    """Return the life to be killed; an outcome nobody raised is made by a kill before it."""
    made = told(lab, story)
    if story.tool != "send":
        return made
    lab.run(replace(made, steps=made.steps[:2], kill=Kill("in_tool_after_effect")))
    return made.then(*RECOVER, *story.steps)


def check(outcome: Outcome, story: Story, where: str = "") -> None:
    """See that a story has come to its end.

    An attempt that was begun and killed is one more unknown attempt on the way there.
    """
    assert outcome.exit_code == 0, where
    assert check_invariants(outcome) == [], where
    states = tuple(r.state for r in outcome.rows)
    more = where.startswith("commit.after:retry")
    assert states == ("unknown",) * more + story.ends, where
    assert outcome.count("k") == story.effects, where
    assert len(outcome.pending("recovery_required")) == story.asks, where


@pytest.mark.parametrize("name", STORIES)
def test_a_story_without_a_kill(lab: CrashLab, name: str) -> None:
    check(lab.run(before(lab, STORIES[name])), STORIES[name])


SETTLING = tuple(
    place for place in FAILPOINTS
    if place.startswith("probe.") or place.rpartition(":")[2] in (
        "schedule_probe", "postpone", "begin_probe", "end_probe", "found_absent", "found_out",
        "give_evidence", "retry",
    )
)  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_c23_killed_at_every_step_the_end_is_the_same(lab: CrashLab, name: str) -> None:
    story = STORIES[name]
    killed = set()
    for scenario in every_kill(lab, before(lab, story), SETTLING):
        where = str(scenario.kill)
        if where.endswith("#2") and story.mode == "dark":
            continue  # as the third, with one probe fewer behind it
        assert lab.run(scenario).killed, where
        check(lab.run(scenario.then(*RECOVER, *story.steps)), story, where)
        killed.add(scenario.kill.place if scenario.kill else "")
    assert killed >= MUST[name]


def _around(*verbs: str) -> set[str]:
    return {f"commit.{when}:{verb}" for when in ("before", "after") for verb in verbs}


PROBES = {"probe.before", "probe.after", *_around("schedule_probe", "begin_probe")}
MUST = {
    "looked up": PROBES | _around("found_out"),
    "looked up later": PROBES | _around("postpone", "found_out"),
    "looked up twice": PROBES | _around("end_probe", "found_out"),
    "proved absent, made again": PROBES | _around("found_absent", "retry"),
    "made again with its key": _around("retry"),
    "not seen, then with its key": PROBES | _around("end_probe", "retry"),
    "a person, with what was found": PROBES | _around("end_probe"),
    "by evidence": _around("give_evidence"),
}
"""The places that a story cannot do without."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_c16_killed_while_a_lookup_that_nobody_can_make_any_more_is_ended(
    lab: CrashLab, when: str
) -> None:
    story = Story("post", "drop", ("unknown",), asks=True)
    made = told(lab, story)
    lab.run(replace(made, kill=Kill("probe.before")))
    changed = made.then(*RECOVER, tools=f"{TOOLS}without_register")
    assert lab.run(replace(changed, kill=Kill(f"commit.{when}:end_probes"))).killed
    check(lab.run(changed), story)


@pytest.mark.parametrize("when", ["before", "after"])
def test_g7_c15_killed_while_an_outcome_passes_to_the_next_owner(lab: CrashLab, when: str) -> None:
    """What the process held dies with it: the call is unknown, and looked up."""
    story = Story("post", "fine", ("succeeded",))
    made = replace(told(lab, story), breaks=(("commit.before:finish", 99),))
    again = replace(
        made, steps=(*made.steps[:2], ("restart",), ("start_gateway",), ("settle",)),
        kill=Kill(f"commit.{when}:rebind"),
    )  # fmt: skip
    assert lab.run(again).killed
    check(lab.run(again.then(*RECOVER)), story)


def test_every_place_of_settling_is_killed_at() -> None:
    told_of = set().union(*MUST.values()) | _around("end_probes", "rebind")
    assert {p for p in FAILPOINTS if p.startswith("probe.")} <= told_of
    assert set(SETTLING) <= told_of
