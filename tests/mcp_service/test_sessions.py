"""A session whose MCP tool loses its reply: one durable row before, unknown after, one effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from openworker_durable import declare, finding
from openworker_durable.hosts.patching import Patches
from openworker_durable.hosts.reference.providers import AssistantTurn
from openworker_durable.hosts.reference.tools import mcp_tool
from openworker_durable.keys import META_KEY
from openworker_durable.ledger import DATABASE
from openworker_durable.policy import reconcile
from tests.contract.kit import table
from tests.host.harness import Lab, Outside, World, call, laboratory, reply
from tests.mcp_service import lookup
from tests.mcp_service.client import Connection, Service, connected

NAME = "mcp__mail__send"
DEADLINE = 1.5
DONE = AssistantTurn(text="done")


class Bridged(Outside):
    """The service's `send`, as the host offers it to the model."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        super().__init__()
        self.connection, self.deadline = connection, deadline

    def tools(self) -> list[Callable[..., Any]]:
        return [mcp_tool("mail", self.connection.bridge("send", self.deadline))]


@pytest_asyncio.fixture
async def lab(tmp_path: Path) -> Any:
    async with laboratory(tmp_path) as made:
        yield made


def world_of(lab: Lab, connection: Connection, *more: Any, deadline: float = DEADLINE) -> World:
    lab.outside = Bridged(connection, deadline)
    return lab.world(reply(call(NAME, "c1", what="x")), *more)


async def test_g1_the_row_is_durable_before_the_network_call_ends(
    lab: Lab, hooked: Patches, mail: Service
) -> None:
    mail.script("slow")
    async with connected(mail) as connection:
        world = world_of(lab, connection, DONE, deadline=20.0)
        turn = world.start()
        await world.allow(NAME)
        await world.until(lambda: mail.sent, "the effect")
        during = table(world.folder / DATABASE, "tool_executions")
        mail.release()
        await turn
        await world.quiet()
    assert [(r["state"], r["attempt"]) for r in during] == [("dispatched", 1)]
    assert mail.metas == [{META_KEY: during[0]["execution_id"]}]
    assert (world.states(), mail.sent) == (["succeeded"], ["x"])
    assert world.answer("c1") == "sent x as number 1"


@pytest.mark.parametrize(
    ("mail", "mode"),
    [("stdio", "die"), ("http-stream", "drop"), ("http-json", "drop"), ("http-json", "die")],
    indirect=["mail"],
)
async def test_c04_a_lost_reply_is_unknown_and_nothing_is_sent_again(
    lab: Lab, hooked: Patches, mail: Service, mode: str
) -> None:
    mail.script(mode)
    async with connected(mail) as connection:
        world = world_of(lab, connection, DONE)
        await world.say("go", NAME)
        assert world.states() == ["unknown"]
        assert "may have happened" in world.answer("c1")
        assert len(world.items()) == 1
        again = await world.crash().restart()
        await again.resume()
        await again.say("continue")
    assert again.states() == ["unknown"]
    assert [e["key"] for e in mail.lines("effects")] == [again.rows()[0].execution_id]
    assert len(mail.lines("calls")) == 1
    assert len(again.items()) == 1
    again.valid()


@pytest.mark.parametrize(
    ("mail", "mode"),
    [("stdio", "die"), ("http-stream", "drop"), ("http-json", "drop")],
    indirect=["mail"],
)
async def test_c04_a_lost_reply_is_looked_up_by_its_key_and_the_lookup_converges(
    lab: Lab, hooked: Patches, mail: Service, mode: str
) -> None:
    mail.script(mode)
    declare.register("mcp:mail/send", reconcile(), reconciler=lookup.reconciler(mail))
    try:
        async with connected(mail) as connection:
            world = world_of(lab, connection, DONE)
            await world.restart()
            copies = lab.copies_at(world, "commit.before:found_out")
            await world.say("go", NAME)
            await world.until(lambda: world.states() == ["succeeded"], "the lookup")
            await world.quiet()
            lab.hook = None
            replayed = await world.reopen(copies[0]).restart()
            # The probe that was cut off counts; the next one of the schedule is brought forward.
            row = replayed.rows()[0]
            assert (row.probes, replayed.states()) == (1, ["unknown"])
            await replayed.runtime.ledger.ask(finding.end_probe, *row.key, 1, "cut off", "", 0.0)
            await replayed.until(lambda: replayed.states() == ["succeeded"], "the lookup again")
            await replayed.quiet()
    finally:
        declare.forget("mcp:mail/send")
    for seen in (world, replayed):
        row = seen.rows()[0]
        assert (row.reason, row.attempt) == ("reconciled", 1)
        assert [told.split("Its result:")[1].strip() for told in seen.follow_ups()] == [
            "sent x as number 1"
        ]
        assert seen.items() == []
        seen.valid()
    assert world.rows()[0].snapshot_digest == replayed.rows()[0].snapshot_digest
    assert [c["tool"] for c in mail.lines("calls")] == ["send", "lookup", "lookup"]
    assert [e["key"] for e in mail.lines("effects")] == [world.rows()[0].execution_id]


@pytest.mark.parametrize("mail", ["stdio", "http-stream"], indirect=True)
async def test_c05_a_server_that_finishes_later_gets_no_second_call_unasked(
    lab: Lab, hooked: Patches, mail: Service
) -> None:
    mail.script("slow")
    async with connected(mail) as connection:
        world = world_of(lab, connection, reply(call(NAME, "c2", what="x")), DONE)
        world.manager.get_engine("s1").permissions.allow_tool_for_session(NAME)
        await world.say("go")
        assert world.states() == ["unknown"]
        mail.release()
        turn = world.start("and?")
        prompt = await world.prompt(NAME)
        assert "may have happened" in prompt.body
        await world.manager.resolve_inbox(prompt.id, "deny")
        await turn
        await world.quiet()
    assert (mail.sent, world.states()) == (["x"], ["unknown"])
    world.valid()


@pytest.mark.parametrize("mail", ["stdio", "http-json"], indirect=True)
async def test_an_error_that_the_tool_reports_bothers_nobody(
    lab: Lab, hooked: Patches, mail: Service
) -> None:
    mail.script("error")
    async with connected(mail) as connection:
        world = world_of(lab, connection, DONE, deadline=20.0)
        await world.say("go", NAME)
    assert (world.states(), world.items(), mail.sent) == (["succeeded"], [], [])
    assert "nothing was sent" in world.answer("c1")
