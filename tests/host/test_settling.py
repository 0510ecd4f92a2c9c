"""Settled without a person on a host: file tools, evidence by hand, the configuration file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.config import settings_from
from openworker_durable.errors import AlreadyDecided, PolicyError
from openworker_durable.evidence import NotAllowed, submit
from openworker_durable.hosts import watching
from openworker_durable.hosts.reference.tools import tool
from openworker_durable.policy import reconcile
from openworker_durable.reconciler import did_not_happen
from openworker_durable.states import Decision
from tests.host.harness import WRITE, Lab, Outside, World, call, reply
from tests.host.policies import DONE, at_rest, declared, office


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.01)


class Disk(Outside):
    """The outside world with the host's tool for writing files."""

    writes = 0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "a.txt"
        self.file.parent.mkdir(parents=True)

    def tools(self) -> list[Callable[..., Any]]:
        def write_file(path: str, content: str, overwrite: bool = True) -> str:
            self.writes += 1
            self.file.with_name(path).write_text(content, encoding="utf-8")
            return path

        return [*super().tools(), tool(write_file, metadata=WRITE)]


ENDS = {
    "effect.before": ("failed", "old"),
    "effect.after": ("succeeded", "new"),
}


@pytest.mark.parametrize("place", ENDS)
async def test_c23_a_kill_inside_write_file_bothers_nobody(
    lab: Lab, tmp_path: Path, place: str
) -> None:
    state, holds = ENDS[place]
    lab.outside = disk = Disk(tmp_path / "state" / "scratch")
    file = disk.file
    file.write_text("old", encoding="utf-8")
    written_at = file.stat().st_mtime_ns
    world = lab.world(reply(call("write_file", "k1", path="a.txt", content="new")), DONE)
    copies = lab.copies_at(world, place)
    await world.say("go", "write_file")
    lab.hook = None
    file.write_text(holds, encoding="utf-8")
    if holds == "old":  # as the kill left it: not written to
        os.utime(file, ns=(written_at, written_at))
    again = await world.reopen(copies[0]).restart()
    await at_rest(again)
    assert again.states() == [state]
    assert again.rows()[0].reason == "reconciled"
    assert again.items() == []
    assert again.manager.inbox.pending() == []
    assert disk.writes == 1
    again.valid()


async def test_c23_a_file_that_somebody_changed_since_is_left_to_a_person(
    lab: Lab, tmp_path: Path
) -> None:
    lab.outside = disk = Disk(tmp_path / "state" / "scratch")
    file = disk.file
    world = lab.world(reply(call("write_file", "k1", path="a.txt", content="new")), DONE)
    copies = lab.copies_at(world, "effect.after")
    await world.say("go", "write_file")
    lab.hook = None
    file.write_text("mine", encoding="utf-8")
    again = await world.reopen(copies[0]).restart()
    await at_rest(again)
    assert again.states() == ["unknown"]
    assert "neither as before nor as intended" in again.item("write_file").body
    assert file.read_text(encoding="utf-8") == "mine"


SOURCES = b'[sources.ops]\ntools = ["post"]\n'


async def lost_reply(lab: Lab) -> World:
    post = office(lab)
    post.fails.append(TimeoutError())
    world = lab.world(reply(call("post", "k1", what="a")), DONE)
    await world.restart()
    await world.say("go", "post")
    await at_rest(world)
    return world


async def test_evidence_by_hand_settles_the_attempt_and_reaches_the_conversation(lab: Lab) -> None:
    world = await lost_reply(lab)
    row = world.rows()[0]
    about: dict[str, Any] = {
        "execution_id": row.execution_id, "attempt": 1, "event": "e1",
        "settings": settings_from(SOURCES),
    }  # fmt: skip
    ledger = world.runtime.ledger
    with pytest.raises(NotAllowed):
        await submit(ledger, source="somebody", result={"posted": "a"}, **about)
    assert world.states() == ["unknown"]
    assert await submit(ledger, source="ops", result={"posted": "a"}, **about)
    assert not await submit(ledger, source="ops", result={"posted": "a"}, **about)
    await world.until(world.follow_ups, "the follow-up")
    await at_rest(world)
    assert world.states() == ["succeeded"]
    assert '"posted": "a"' in world.follow_ups()[0]
    assert world.items() == []
    assert lab.outside.calls == 1  # type: ignore[attr-defined]  # it is the post office
    with pytest.raises(AlreadyDecided):
        await submit(ledger, source="ops", error="no", **{**about, "event": "e2"})
    world.valid()


async def test_a_person_who_decides_while_it_is_looked_up_comes_first(lab: Lab) -> None:
    post = office(lab)
    post.fails.append(TimeoutError())
    decided: list[bool] = []
    with declared(reconcile(attempts=2), post.reconciler(reads_see_writes=True)):
        world = lab.world(reply(call("post", "k1", what="a")), DONE)

        def says(_probe: Any) -> Any:
            world.runtime.decide(*world.rows()[0].key, Decision.HAPPENED, by="test")
            decided.append(True)
            return did_not_happen()

        post.says = says
        await world.restart()
        await world.say("go", "post")
        await at_rest(world)
        assert decided == [True]
        row = world.rows()[0]
        assert (row.decision, post.calls) == (Decision.HAPPENED, 1)
        assert world.states() == ["succeeded"]


@pytest.mark.parametrize(
    "text",
    [
        b'[tools.send]\npolicy = "reconcile"\n',
        b'[tools.send]\npolicy = "idempotent"\n',
        b'[tools.send]\npolcy = "manual"\n',
        b'[tools."send*"]\npolicy = "manual"\n',
        b"[tools.send\n",
    ],
)
def test_a_start_with_a_contradiction_is_refused_with_a_message(lab: Lab, text: bytes) -> None:
    folder = lab.tmp_path / "state"
    folder.mkdir()
    (folder / "durable.toml").write_bytes(text)
    with pytest.raises(PolicyError, match=r"durable\.toml"):
        lab.world(DONE)


async def test_the_persons_file_sets_a_policy(lab: Lab) -> None:
    post = office(lab)
    post.fails.append(TimeoutError())
    folder = lab.tmp_path / "state"
    folder.mkdir()
    text = '[tools.post]\npolicy = "idempotent"\nkey_valid = "24h"\n'
    (folder / "durable.toml").write_text(text, encoding="utf-8")
    world = lab.world(reply(call("post", "k1", what="a")), DONE)
    await world.restart()
    await world.say("go", "post")
    await at_rest(world)
    assert world.states() == ["unknown", "succeeded"]
    assert (post.calls, len(post.letters)) == (2, 1)
