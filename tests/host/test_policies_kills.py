"""A kill at every step of a probe, and of what follows from its verdict, comes to the same end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.failpoints import FAILPOINTS
from openworker_durable.hosts import watching
from openworker_durable.policy import idempotent, reconcile
from openworker_durable.reconciler import cannot_tell, did_not_happen, happened, pending
from tests.host.harness import Lab, call, reply
from tests.host.policies import DAY, DONE, at_rest, declared, office

SCRIPT = (reply(call("post", "k1", what="a")), DONE)
KEYED = idempotent(key_valid=DAY)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.01)


STORIES: dict[str, dict[str, Any]] = {
    "happened": {
        "policy": reconcile(), "says": lambda _p: happened({"posted": "a"}),
        "ends": ["succeeded"], "letters": 1, "must": "found_out",
    },
    "absent, made again": {
        "policy": reconcile(attempts=3), "sent": False, "says": None,
        "ends": ["unknown", "succeeded"], "letters": 1, "must": "found_absent",
    },
    "pending, then by key": {
        "policy": reconcile(then=KEYED),
        "says": lambda p: pending(0.0) if p.number < 3 else cannot_tell(),
        "ends": ["unknown", "succeeded"], "letters": 1, "must": "end_probe",
    },
    "a person": {
        "policy": reconcile(), "says": lambda _p: cannot_tell(), "ends": ["unknown"],
        "letters": 1, "must": "schedule_probe",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
async def test_c23_killed_at_any_step_of_a_probe_the_end_is_the_same(lab: Lab, name: str) -> None:
    story = STORIES[name]
    post = office(lab)
    post.keeps_keys = story["says"] is not None
    post.says = story["says"] or (
        lambda p: post.register(p) if p.execution_id in dict(post.letters) else did_not_happen()
    )
    if story.get("sent", True):
        post.fails.append(TimeoutError())
    else:
        post.lost.append(TimeoutError())
    seen: list[tuple[str, Path, list[tuple[str, str]]]] = []
    with declared(story["policy"], post.reconciler(reads_see_writes=True, timeout=0.2)):
        world = lab.world(*SCRIPT)
        await world.restart()

        def hook(place: str) -> None:
            # Kills before the outcome is in doubt are shown elsewhere.
            if post.calls and len(seen) < 200:
                seen.append((place, world.copy(f"k{len(seen)}"), list(post.letters)))

        lab.hook = hook
        await world.say("go", "post")
        await at_rest(world)
        lab.hook = None
        assert world.states() == story["ends"]
        places = Counter(place for place, _, _ in seen)
        assert places[f"commit.after:{story['must']}"] >= 1
        assert set(places) <= set(FAILPOINTS)
        for place, folder, letters in seen:
            post.letters, post.fails, post.lost = list(letters), [], []
            again = world.reopen(folder)
            again.runtime.prober.grace = 0.0
            await again.restart()
            await at_rest(again)
            assert again.states()[-1] == story["ends"][-1], place
            assert len(post.letters) == story["letters"], place
            assert len(again.items()) == (story["ends"] == ["unknown"]), place
            again.valid()
            await again.manager.aclose()
