"""The field cases once more, under each policy."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from openworker_durable.errors import AlreadyDecided
from openworker_durable.hosts import watching
from openworker_durable.policy import RecoveryPolicy, idempotent, manual, reconcile
from openworker_durable.reconciler import cannot_tell
from openworker_durable.states import Decision
from tests.host.harness import Lab, World, call, reply
from tests.host.policies import DAY, DONE, Post, at_rest, declared, office

SCRIPT = (reply(call("post", "k1", what="a")), DONE)
KEYED = idempotent(key_valid=DAY, attempts=2)
POLICIES: dict[str, RecoveryPolicy] = {
    "manual": manual(),
    "idempotent": KEYED,
    "reconcile": reconcile(),
    "reconcile, then idempotent": reconcile(then=KEYED),
}
SETTLES = {
    "manual": (["unknown"], 1),
    "idempotent": (["unknown", "succeeded"], 2),
    "reconcile": (["succeeded"], 1),
    "reconcile, then idempotent": (["succeeded"], 1),
}
"""States and calls after a reply was lost, where the register knows the letter."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.01)


@pytest.fixture(params=POLICIES)
def under(request: pytest.FixtureRequest, lab: Lab) -> Iterator[tuple[str, Post]]:
    """Yield each policy's name, and the post office whose tool has it."""
    name = str(request.param)
    post = office(lab)
    with declared(POLICIES[name], post.reconciler()):
        yield name, post


async def one_turn(lab: Lab) -> World:
    world = lab.world(*SCRIPT)
    await world.restart()
    await world.say("go", "post")
    await at_rest(world)
    return world


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), PermissionError("no"), ConnectionRefusedError(), socket.gaierror(-2, "x")],
    ids=lambda e: type(e).__name__,
)
async def test_c29_what_never_began_fails_under_each_policy(
    lab: Lab, under: tuple[str, Post], error: BaseException
) -> None:
    _name, post = under
    post.lost.append(error)
    world = await one_turn(lab)
    assert (world.states(), post.calls, post.looks, world.items()) == (["failed"], 1, [], [])
    assert world.messages()[-1]["content"] == "done"


async def test_c12_a_committed_result_is_rebuilt_under_each_policy(
    lab: Lab, under: tuple[str, Post]
) -> None:
    _name, post = under
    world = lab.world(*SCRIPT)
    copies = lab.copies_at(world, "commit.after:finish")
    await world.say("go", "post")
    lab.hook = None
    again = await world.reopen(copies[0]).restart()
    await again.resume()
    await at_rest(again)
    assert (again.states(), post.calls, post.looks) == (["succeeded"], 1, [])
    assert again.answer("k1") == world.answer("k1")
    assert again.items() == []
    again.valid()


FAULTS = {"c15": "database is locked", "c16": "database or disk is full"}


def failing(lab: Lab, place: str, text: str) -> None:
    def hook(name: str) -> None:
        if name == place:
            raise sqlite3.OperationalError(text)

    lab.hook = hook


@pytest.mark.parametrize("case", FAULTS)
async def test_c15_c16_before_dispatch_nothing_is_sent_under_each_policy(
    lab: Lab, under: tuple[str, Post], case: str
) -> None:
    _name, post = under
    world = lab.world(*SCRIPT)
    failing(lab, "commit.before:dispatch", FAULTS[case])
    await world.say("go", "post")
    lab.hook = None
    assert (post.calls, world.states(), post.looks) == (0, [], [])
    assert "was not made" in world.answer("k1")


@pytest.mark.parametrize("case", FAULTS)
async def test_c15_c16_after_the_call_the_write_is_tried_again_or_it_is_unknown_on_restart(
    lab: Lab, under: tuple[str, Post], case: str
) -> None:
    name, post = under
    world = lab.world(*SCRIPT)
    failing(lab, "commit.before:finish", FAULTS[case])
    seen: list[Any] = []

    def hook(place: str) -> None:
        if place == "commit.before:finish":
            if not seen:
                seen.append(world.copy("lost"))
            raise sqlite3.OperationalError(FAULTS[case])

    lab.hook = hook
    await world.say("go", "post")
    assert '"posted": "a"' in world.answer("k1")
    lab.hook = None
    await world.until(lambda: world.states() == ["succeeded"], "the write")
    assert (post.calls, post.looks) == (1, [])
    await world.manager.aclose()
    again = await world.reopen(seen[0]).restart()
    await at_rest(again)
    states, calls = SETTLES[name]
    assert (again.states(), post.calls, len(post.letters)) == (states, calls, 1)
    assert len(again.items()) == (states == ["unknown"])
    again.valid()


async def test_c20_of_two_decisions_the_first_wins_under_each_policy(
    lab: Lab, under: tuple[str, Post]
) -> None:
    _name, post = under
    post.says = lambda _probe: cannot_tell()
    post.fails += [TimeoutError(), TimeoutError()]
    world = await one_turn(lab)
    row, calls = world.rows()[-1], post.calls
    assert world.item("post").data["recovery"]["attempt"] == row.attempt
    world.runtime.decide(*row.key, Decision.HAPPENED, by="inbox")
    with pytest.raises(AlreadyDecided):
        world.runtime.decide(*row.key, Decision.RETRY, by="cli")
    await at_rest(world)
    assert world.rows()[-1].decision is Decision.HAPPENED
    assert post.calls == calls
    assert world.items() == []
