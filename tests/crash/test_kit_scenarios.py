"""Scenarios are checked when they are made, and everything they can name exists."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from openworker_durable.testing import (
    CRASH_POINTS,
    PLACES,
    RECOVER,
    STEPS,
    Kill,
    Scenario,
    one_call,
    one_turn,
    reply,
)
from openworker_durable.testing.player import Player

HERE = Path("state")


def test_every_step_can_be_played() -> None:
    assert {name.removeprefix("do_") for name in dir(Player) if name.startswith("do_")} == set(
        STEPS
    )


def test_a_scenario_travels() -> None:
    scenario = one_turn(HERE, kill=Kill("effect.after", 2))
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no kill place"):
        Kill("nowhere")
    with pytest.raises(ValueError, match="no step"):
        Scenario(HERE, one_call(), (("dance",),))
    with pytest.raises(ValueError, match="neither"):
        one_turn(HERE, authorised_by="nobody")
    with pytest.raises(ValueError, match="not known"):
        one_turn(HERE, host="another")
    with pytest.raises(ValueError, match="no commit"):
        one_turn(HERE, breaks=(("effect.before", 1),))


def test_the_next_life_begins_without_a_kill() -> None:
    scenario = one_turn(HERE, kill=Kill("after_save"), breaks=(("commit.before:finish", 1),))
    after = scenario.then(durable=False)
    assert (after.kill, after.breaks, after.steps, after.durable) == (None, (), RECOVER, False)
    assert after.state_dir == scenario.state_dir


def test_the_calls_of_a_script_are_those_of_all_its_replies() -> None:
    replies = (reply(("a", "send", {}), ("b", "lookup", {})), "done", reply(("c", "send", {})))
    assert [c.id for c in one_turn(HERE, replies).calls] == ["a", "b", "c"]


def test_the_six_points_are_places_as_well() -> None:
    assert len(CRASH_POINTS) == 6
    assert set(CRASH_POINTS) < set(PLACES)
    assert str(Kill("after_save", 3)) == "after_save#3"
