"""What each recovery policy makes of an unknown outcome, in a live turn and after a kill."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.hosts import watching
from openworker_durable.policy import RecoveryPolicy, idempotent, manual, reconcile
from openworker_durable.reconciler import (
    Probe,
    Verdict,
    cannot_tell,
    did_not_happen,
    failed,
    happened,
    pending,
)
from openworker_durable.states import State
from tests.host.harness import Lab, World, call, reply
from tests.host.policies import DAY, DONE, Post, at_rest, declared, office

SCRIPT = (reply(call("post", "k1", what="a")), DONE)
KEYED = idempotent(key_valid=DAY)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.01)


async def live(lab: Lab, post: Post, *, sent: bool = True) -> World:
    """Return a world whose one call lost its reply in a live turn, at rest."""
    (post.fails if sent else post.lost).append(TimeoutError("read timed out"))
    world = lab.world(*SCRIPT)
    await world.restart()
    await world.say("go", "post")
    await at_rest(world)
    return world


async def killed(lab: Lab, post: Post, *, sent: bool = True) -> World:
    """Return the world after a kill inside the one call, restarted and at rest."""
    world = lab.world(*SCRIPT)
    copies = lab.copies_at(world, "effect.after" if sent else "effect.before")
    await world.say("go", "post")
    lab.hook = None
    if not sent:
        post.letters.clear()
    post.calls = 1
    again = await world.reopen(copies[0]).restart()
    await at_rest(again)
    return again


WAYS = [pytest.param(live, id="live"), pytest.param(killed, id="killed")]


@pytest.mark.parametrize("way", WAYS)
async def test_c04_c05_under_manual_a_person_is_asked_and_nothing_is_sent(
    lab: Lab, way: Any
) -> None:
    post = office(lab)
    with declared(manual(), post.reconciler()):
        world = await way(lab, post)
        assert world.states() == ["unknown"]
        assert "it may have happened. A person has been asked" in world.answer("k1")
        assert world.item("post").state == "pending"
        assert post.looks == []
        assert post.calls == 1
        world.valid()


@pytest.mark.parametrize("way", WAYS)
async def test_c04_c05_under_reconcile_the_register_settles_it(lab: Lab, way: Any) -> None:
    post = office(lab)
    with declared(reconcile(), post.reconciler()):
        world = await way(lab, post)
        row = world.rows()[0]
        assert (row.state, row.reason, row.decision) == (State.SUCCEEDED, "reconciled", None)
        assert world.items() == []
        assert "OpenWorker is finding out" in world.answer("k1")
        assert ["its outcome is now known. It succeeded." in t for t in world.follow_ups()] == [
            True
        ]
        assert '"posted": "a"' in world.follow_ups()[0]
        assert (len(post.looks), post.calls, len(post.letters)) == (1, 1, 1)
        probe = post.looks[0]
        assert (probe.arguments, probe.number) == ({"what": "a"}, 1)
        assert probe.idempotency_key == row.execution_id
        world.valid()


@pytest.mark.parametrize("way", WAYS)
async def test_c04_c05_under_idempotent_it_is_made_again_with_its_key(lab: Lab, way: Any) -> None:
    post = office(lab)
    with declared(KEYED):
        world = await way(lab, post)
        assert world.states() == ["unknown", "succeeded"]
        assert [r.authority_kind.value for r in world.rows() if r.authority_kind][1] == "policy"
        assert world.rows()[0].decision is None
        assert world.rows()[0].superseded
        assert world.items() == []
        assert (post.calls, len(post.letters)) == (2, 1)
        world.valid()


@pytest.mark.parametrize("way", WAYS)
async def test_c04_c05_reconcile_that_cannot_tell_goes_on_with_the_key(lab: Lab, way: Any) -> None:
    post = office(lab)
    post.says = lambda _probe: cannot_tell("the register is closed")
    with declared(reconcile(then=KEYED), post.reconciler()):
        world = await way(lab, post)
        assert world.states() == ["unknown", "succeeded"]
        assert (len(post.looks), post.calls, len(post.letters)) == (3, 2, 1)
        assert world.items() == []
        world.valid()


@pytest.mark.parametrize("way", WAYS)
async def test_c04_c05_reconcile_that_cannot_tell_asks_a_person_with_what_was_found(
    lab: Lab, way: Any
) -> None:
    post = office(lab)
    post.says = lambda _probe: cannot_tell("the register is closed")
    with declared(reconcile(), post.reconciler()):
        world = await way(lab, post)
        assert world.states() == ["unknown"]
        assert len(post.looks) == 3
        assert "the register is closed" in world.item("post").body
        await world.decide("post", "happened")
        assert world.states() == ["succeeded"]
        assert post.calls == 1
        world.valid()


@pytest.mark.parametrize("way", WAYS)
async def test_proof_of_absence_ends_the_attempt_as_failed(lab: Lab, way: Any) -> None:
    post = office(lab)
    post.says = lambda _probe: did_not_happen()
    with declared(reconcile(), post.reconciler(reads_see_writes=True)):
        world = await way(lab, post, sent=False)
        assert world.states() == ["failed"]
        assert "It failed." in world.follow_ups()[0]
        assert "did not happen" in world.follow_ups()[0]
        assert post.calls == 1
        assert world.items() == []
        world.valid()


@pytest.mark.parametrize("way", WAYS)
async def test_proof_of_absence_lets_a_policy_with_attempts_make_it_again(
    lab: Lab, way: Any
) -> None:
    post = office(lab)
    post.says = lambda _probe: did_not_happen()
    with declared(reconcile(attempts=2), post.reconciler(reads_see_writes=True)):
        world = await way(lab, post, sent=False)
        assert world.states() == ["unknown", "succeeded"]
        assert (post.calls, len(post.letters), len(post.looks)) == (2, 1, 1)
        assert world.items() == []
        world.valid()


async def test_absence_that_proves_nothing_asks_a_person(lab: Lab) -> None:
    post = office(lab)
    post.says = lambda _probe: did_not_happen()
    with declared(reconcile(attempts=3), post.reconciler()):
        world = await live(lab, post)
        assert world.states() == ["unknown"]
        assert len(post.looks) == 3
        assert "proves nothing" in world.item("post").body
        assert post.calls == 1


async def test_pending_is_asked_again_and_then_settles(lab: Lab) -> None:
    post = office(lab)
    answers = [pending(0.0), pending(0.0), happened({"posted": "a"})]
    post.says = lambda _probe: answers.pop(0)
    with declared(reconcile(), post.reconciler()):
        world = await live(lab, post)
        assert world.states() == ["succeeded"]
        assert [p.number for p in post.looks] == [1, 2, 3]
        assert post.calls == 1


async def test_an_authoritative_error_is_the_outcome(lab: Lab) -> None:
    post = office(lab)
    post.says = lambda _probe: failed({"error": "no such address"})
    with declared(reconcile(), post.reconciler()):
        world = await live(lab, post)
        assert world.states() == ["failed"]
        assert "no such address" in world.follow_ups()[0]


async def test_a_probe_that_raises_decides_nothing(lab: Lab) -> None:
    post = office(lab)

    def broken(_probe: Probe) -> Verdict:
        raise RuntimeError("secret-canary")

    post.says = broken
    with declared(reconcile(), post.reconciler()):
        world = await live(lab, post)
        assert world.states() == ["unknown"]
        body = world.item("post").body
        assert "RuntimeError" in body
        assert "secret-canary" not in body
        assert post.calls == 1


async def test_a_result_that_the_tools_output_does_not_allow_is_not_written(lab: Lab) -> None:
    post = office(lab)
    post.says = lambda _probe: happened({"posted": 7})
    with declared(reconcile(), post.reconciler(), output=dict[str, str]):
        world = await live(lab, post)
        assert world.states() == ["unknown"]
        assert "refused" in world.item("post").body
        assert world.rows()[0].snapshot_digest is None


async def test_attempts_are_used_up_and_then_a_person_is_asked(lab: Lab) -> None:
    post = office(lab)
    post.fails += [TimeoutError(), TimeoutError()]
    with declared(idempotent(key_valid=DAY, attempts=3)):
        world = await live(lab, post)
        assert world.states() == ["unknown", "unknown", "unknown"]
        assert (post.calls, len(post.letters)) == (3, 1)
        assert world.item("post").data["recovery"]["attempt"] == 3
        world.valid()


async def test_g3_a_policy_taken_back_meanwhile_counts(lab: Lab, tmp_path: Path) -> None:
    post = office(lab)
    with declared(KEYED):
        world = lab.world(*SCRIPT)
        copies = lab.copies_at(world, "effect.after")
        await world.say("go", "post")
    lab.hook, post.calls = None, 1
    again = await world.reopen(copies[0]).restart()
    await at_rest(again)
    assert again.states() == ["unknown"]
    assert again.item("post").state == "pending"
    assert post.calls == 1


async def test_a_policy_given_after_the_dispatch_does_not_count(lab: Lab) -> None:
    post = office(lab)
    world = lab.world(*SCRIPT)
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "post")
    lab.hook, post.calls = None, 1
    with declared(KEYED):
        again = await world.reopen(copies[0]).restart()
        await at_rest(again)
        assert again.states() == ["unknown"]
        assert again.item("post").state == "pending"
        assert post.calls == 1


@pytest.mark.parametrize("policy", [KEYED, reconcile()], ids=["idempotent", "reconcile"])
async def test_g3_another_tool_of_the_name_is_not_the_one_that_was_called(
    lab: Lab, policy: RecoveryPolicy
) -> None:
    post = office(lab)
    with declared(policy, post.reconciler()):
        world = lab.world(*SCRIPT)
        copies = lab.copies_at(world, "effect.after")
        await world.say("go", "post")
        lab.hook, post.calls = None, 1
        again = world.reopen(copies[0])
        for made in again.manager.tools:
            if made.__name__ == "post":
                setattr(made, "__durable_account__", "somebody else")  # noqa: B010 - mypy knows no such name
        await again.restart()
        await at_rest(again)
        assert again.states() == ["unknown"]
        assert again.item("post").state == "pending"
        assert (post.calls, post.looks) == (1, [])


async def test_what_a_probe_found_is_committed_once(lab: Lab) -> None:
    """Whoever looks for work while a commit is under way waits for it, and does not repeat it."""
    post = office(lab)
    post.fails.append(TimeoutError())
    reached: list[str] = []
    looks: list[asyncio.Task[None]] = []
    begun = threading.Event()
    with declared(reconcile(), post.reconciler()):
        world = lab.world(reply(call("post", "k1", what="a")), DONE)
        await world.restart()
        prober, loop = world.runtime.prober, asyncio.get_running_loop()

        def meanwhile() -> None:
            looks.append(asyncio.ensure_future(prober.begin([])))
            begun.set()

        def hook(place: str) -> None:
            reached.append(place)
            if place == "commit.before:found_out" and not begun.is_set():
                loop.call_soon_threadsafe(meanwhile)
                begun.wait(5)

        lab.hook = hook
        await world.say("go", "post")
        await at_rest(world)
    assert looks
    assert reached.count("commit.before:found_out") == 1
    assert world.states() == ["succeeded"]
