"""The table of moves, and that the SQL checks say the same as the enums."""

from __future__ import annotations

import itertools
import re
from enum import Enum

import pytest

from openworker_durable.sql import QUERIES, SCHEMA, load
from openworker_durable.states import (
    FINAL_DECISIONS,
    KNOWN,
    MOVES,
    PROTOCOL_VERSION,
    AuthorityKind,
    Decision,
    State,
    allowed,
    state_after,
    transitions_table,
)

BEFORE: tuple[State | None, ...] = (None, *State)


def checked(column: str) -> set[str]:
    """Return the words that the schema's CHECK allows in a column."""
    found = re.search(rf"{column} (?:IN)\s*\(([^)]*)\)", SCHEMA["tables"])
    assert found is not None
    return set(re.findall(r"'(\w+)'", found.group(1)))


def values(members: type[Enum] | frozenset[Decision]) -> set[str]:
    return {str(m.value) for m in members}


def test_sql_checks_are_equal_to_their_enums() -> None:
    assert checked("state") == values(State)
    assert checked("authority_kind") == values(AuthorityKind)
    assert checked("decision") == values(FINAL_DECISIONS)


def test_sql_check_of_states_holds_for_this_protocol_only() -> None:
    assert f"protocol_version > {PROTOCOL_VERSION} OR state IN" in SCHEMA["tables"]


@pytest.mark.parametrize("nxt", [False, True])
@pytest.mark.parametrize(("before", "after"), list(itertools.product(BEFORE, State)))
def test_allowed_is_exactly_the_design(before: State | None, after: State, nxt: bool) -> None:
    design = {
        (None, State.DISPATCHED, False),
        (None, State.UNKNOWN, False),
        (State.DISPATCHED, State.SUCCEEDED, False),
        (State.DISPATCHED, State.FAILED, False),
        (State.DISPATCHED, State.UNKNOWN, False),
        (State.UNKNOWN, State.SUCCEEDED, False),
        (State.UNKNOWN, State.FAILED, False),
        (State.UNKNOWN, State.DISPATCHED, True),
    }
    assert allowed(before, after, next_attempt=nxt) is ((before, after, nxt) in design)


def test_known_states_are_terminal() -> None:
    assert {State.SUCCEEDED, State.FAILED} == KNOWN
    assert not [m for m in MOVES if m.before in KNOWN]


def test_state_after_each_decision() -> None:
    assert {d: state_after(d) for d in Decision} == {
        Decision.HAPPENED: State.SUCCEEDED,
        Decision.DROP: State.FAILED,
        Decision.RETRY: State.UNKNOWN,
        Decision.UNSURE: State.UNKNOWN,
    }
    assert set(Decision) - {Decision.UNSURE} == FINAL_DECISIONS


def test_transitions_table_has_a_line_for_each_move() -> None:
    lines = transitions_table().splitlines()[2:]
    assert len(lines) == len(MOVES) == len(set(MOVES))
    for move, line in zip(MOVES, lines, strict=True):
        assert f"`{move.verb}`" in line
        assert move.meaning in line
        assert ("attempt + 1" in line) is move.next_attempt
        assert line.startswith(f"| {move.before.value if move.before else '(no row)'} |")


def test_named_statements_are_unique_and_not_empty() -> None:
    assert all(QUERIES.values())
    assert load("queries.sql").keys() == QUERIES.keys()
    assert not any("@" in text for text in QUERIES.values())
    assert "insert_execution" in QUERIES
    assert "expire" not in QUERIES
