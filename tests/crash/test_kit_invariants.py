"""The invariants can fail: each of them, on an outcome in which just that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.states import Decision, State
from openworker_durable.testing import (
    CrashLab,
    Effect,
    EffectService,
    Kill,
    Outcome,
    check_invariants,
    one_turn,
)

pytestmark = pytest.mark.crash

Spoil = Callable[[Outcome], Outcome]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashLab]:
    with EffectService() as service:
        yield CrashLab(tmp_path_factory.mktemp("lab"), service)


@pytest.fixture(scope="module")
def done(lab: CrashLab) -> Outcome:
    """A call that was made, recorded and told."""
    return lab.run(one_turn(lab.folder()))


@pytest.fixture(scope="module")
def asked(lab: CrashLab) -> Outcome:
    """A call that is unknown, and about which a person is asked."""
    scenario = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    return lab.run(scenario.then())


@pytest.fixture(scope="module")
def retried(lab: CrashLab) -> Outcome:
    """A call that was unknown, and was run once more because a person said so."""
    scenario = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
    lab.run(scenario)
    return lab.run(scenario.then(("start_gateway",), ("decide", "*", "retry", "inbox")))


def test_the_outcomes_to_be_spoiled_are_sound(
    done: Outcome, asked: Outcome, retried: Outcome
) -> None:
    assert [check_invariants(o) for o in (done, asked, retried)] == [[], [], []]
    assert retried.count("k") == 2


def again(outcome: Outcome, **changes: Any) -> Effect:
    return replace(outcome.effects[-1], **changes)


def without(outcome: Outcome, role: str) -> list[dict[str, Any]]:
    return [m for m in outcome.thread if m["role"] != role]


SPOILED: dict[str, Spoil] = {
    "at most 1 are": lambda o: replace(o, effects=[*o.effects, again(o)]),
    "was carried out 2 times": lambda o: replace(o, effects=[*o.effects, again(o)]),
    "has no row": lambda o: replace(o, effects=[again(o, execution_id="")]),
    "nobody allowed it": lambda o: replace(o, allowed=frozenset()),
    "is not answered": lambda o: replace(o, thread=without(o, "tool")),
    "not in the conversation": lambda o: replace(o, thread=without(o, "tool")),
    "neither in the conversation": lambda o: replace(o, thread=without(o, "assistant")),
    "still dispatched": lambda o: replace(
        o, rows=[r.model_copy(update={"state": State.DISPATCHED}) for r in o.rows]
    ),
    "error inside the process: boom": lambda o: replace(
        o, told={**o.told, "errors": ["Traceback\nboom"]}
    ),
    "refused the conversation": lambda o: replace(
        o, told={**o.told, "provider_errors": ["ProviderRejected: no"]}
    ),
    "hung": lambda o: replace(o, hung=True, trace="stacks"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_call_that_was_made(done: Outcome, fault: str) -> None:
    assert any(fault in found for found in check_invariants(SPOILED[fault](done)))


def recovery_items(outcome: Outcome) -> list[dict[str, Any]]:
    return [i for i in outcome.items if i["kind"] == "recovery_required"]


ASKED: dict[str, Spoil] = {
    "nobody is asked": lambda o: replace(
        o, items=[i for i in o.items if i["kind"] != "recovery_required"]
    ),
    "has 2 pending items": lambda o: replace(o, items=[*o.items, *recovery_items(o)]),
    "which is settled": lambda o: replace(
        o, rows=[r.model_copy(update={"state": State.SUCCEEDED}) for r in o.rows]
    ),
    "was not run again": lambda o: replace(
        o, rows=[r.model_copy(update={"decision": Decision.RETRY}) for r in o.rows]
    ),
    "the model was not told": lambda o: replace(
        o,
        rows=[
            r.model_copy(update={"state": State.FAILED, "decision": Decision.DROP}) for r in o.rows
        ],
    ),
}


@pytest.mark.parametrize("fault", ASKED)
def test_a_call_that_is_unknown(asked: Outcome, fault: str) -> None:
    assert any(fault in found for found in check_invariants(ASKED[fault](asked)))


def test_a_follow_up_that_stands_twice(retried: Outcome) -> None:
    follow_up = next(m for m in retried.thread if (m.get("source") or {}).get("durable") and
                     m["role"] == "user")  # fmt: skip
    spoiled = replace(retried, thread=[*retried.thread, follow_up])
    assert any("stands 2 times" in fault for fault in check_invariants(spoiled))


def test_what_is_not_settled_yet_is_no_fault(lab: CrashLab) -> None:
    outcome = lab.run(one_turn(lab.folder(), kill=Kill("in_tool_after_effect")))
    assert check_invariants(outcome, settled=False) == []
    assert any("still dispatched" in fault for fault in check_invariants(outcome))
    assert not any("still dispatched" in f for f in check_invariants(outcome, live=True))


def test_a_damaged_thread_is_looked_at_as_far_as_it_can_be_read(lab: CrashLab) -> None:
    scenario = one_turn(lab.folder())
    whole = lab.run(scenario)
    path: Path = scenario.state_dir / "conversations" / "s.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert lab.look(scenario).thread == whole.thread[:-1]
