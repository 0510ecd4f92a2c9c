"""What the SDK's client sees of a reply that is lost, and what that proves (C04, C05)."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from openworker_durable.guard import Guard
from openworker_durable.hosts.patching import Patches
from openworker_durable.models import ToolIdentity
from openworker_durable.outcomes import state_of
from openworker_durable.reconciler import (
    Finding,
    NoVerdict,
    Probe,
    VerdictKind,
    ask,
    did_not_happen,
    happened,
    weigh,
)
from openworker_durable.states import State
from tests.calls import protected, rows
from tests.mcp_service.client import Service, connected, service
from tests.mcp_service.lookup import reconciler

DEADLINE = 1.5
"""Seconds; after a cut connection over HTTP the SDK waits for ever, so the caller's ends it."""


async def _end(mail: Service, mode: str, *, sdk_deadline: bool = False) -> Any:
    """Make one call; return what came back, or what was raised."""
    mail.script(mode)
    async with connected(mail) as connection:
        try:
            if not sdk_deadline:
                return await asyncio.to_thread(connection.bridge("send", DEADLINE), what="x")
            assert connection.session is not None
            limit = timedelta(seconds=DEADLINE)
            return await connection.session.call_tool("send", {"what": "x"}, limit)
        except Exception as exc:
            return exc
        finally:
            mail.release()


TIMEOUT, MCP_TIMEOUT, CLOSED = ("TimeoutError", None), ("McpError", 408), ("McpError", -32000)


@pytest.mark.parametrize(
    ("mail", "mode", "sdk_deadline", "seen", "done"),
    [
        ("stdio", "slow", False, TIMEOUT, 1),
        ("stdio", "slow", True, MCP_TIMEOUT, 1),
        ("stdio", "die", False, CLOSED, 1),
        ("stdio", "die_first", True, CLOSED, 0),
        ("http-stream", "slow", False, TIMEOUT, 1),
        ("http-stream", "drop", True, MCP_TIMEOUT, 1),
        ("http-stream", "die", False, TIMEOUT, 1),
        ("http-json", "slow", True, MCP_TIMEOUT, 1),
        ("http-json", "drop", False, TIMEOUT, 1),
        ("http-json", "die_first", True, MCP_TIMEOUT, 0),
    ],
    indirect=["mail"],
)
async def test_c04_c05_a_lost_reply_is_unknown(
    mail: Service, mode: str, sdk_deadline: bool, seen: tuple[str, int | None], done: int
) -> None:
    raised = await _end(mail, mode, sdk_deadline=sdk_deadline)
    code = getattr(getattr(raised, "error", None), "code", None)
    assert (type(raised).__name__, code) == seen
    assert state_of(raised, external=True) is State.UNKNOWN
    assert len(mail.sent) == done


@pytest.mark.parametrize("mail", ["stdio", "http-stream"], indirect=True)
async def test_an_error_inside_the_server_proves_nothing(mail: Service) -> None:
    raised = await _end(mail, "internal")
    assert (type(raised).__name__, raised.error.code) == ("McpError", -32603)
    assert state_of(raised, external=True) is State.UNKNOWN
    assert mail.sent == ["x"]


@pytest.mark.parametrize("mail", ["stdio", "http-stream"], indirect=True)
async def test_c04_a_server_that_refuses_the_parameters_asks_nobody(mail: Service) -> None:
    raised = await _end(mail, "invalid")
    assert (type(raised).__name__, raised.error.code) == ("McpError", -32602)
    assert state_of(raised, external=True) is State.FAILED
    assert mail.sent == []


@pytest.mark.parametrize("mail", ["stdio", "http-stream"], indirect=True)
@pytest.mark.parametrize(("mode", "done"), [("error", []), ("late_error", ["x"])])
async def test_an_error_that_the_tool_reports_is_an_answer(
    mail: Service, mode: str, done: list[str]
) -> None:
    assert "error" in await _end(mail, mode)
    assert mail.sent == done


# -- finding out
def _probe(execution_id: str, number: int = 1) -> Probe:
    tool = ToolIdentity(source="mcp:mail", name="mcp__mail__send")
    return Probe(execution_id, 1, tool, {"what": "x"}, ended_at=100.0, number=number)


async def _lost(mail: Service, guard: Guard, mode: str) -> str:
    """Make a protected call whose reply is lost; return its execution's id."""
    mail.script(mode)
    async with connected(mail) as connection:
        send = connection.bridge("send", DEADLINE)
        with pytest.raises(Exception, match=r"Connection closed|^$"):
            await asyncio.to_thread(protected, guard, lambda: send(what="x"))
    row = rows(guard)[0]
    assert row.state is State.UNKNOWN
    return row.execution_id


async def test_the_lookup_finds_exactly_what_happened_again_and_again(
    mail: Service, guard: Guard, hooked: Patches
) -> None:
    key = await _lost(mail, guard, "die" if mail.transport == "stdio" else "drop")
    found = reconciler(mail)
    answers = [await ask(found, _probe(key, number)) for number in (1, 2)]
    assert answers == [happened("sent x as number 1", "found by its key")] * 2
    assert [weigh(a, found, _probe(key), 100.0).word for a in answers] == ["happened"] * 2
    assert mail.sent == ["x"], "looking has no effect"
    assert mail.metas[1:] == [{}, {}], "a look is not the call"
    assert await ask(found, _probe("another")) == did_not_happen("nothing has this key")


async def test_not_there_is_proof_only_where_reads_see_writes(tmp_path: Path, guard: Guard) -> None:
    with service(tmp_path / "mail", "stdio") as mail:
        probe = _probe(await _lost(mail, guard, "die_first"))
        answer = await ask(reconciler(mail), probe)
    assert answer == did_not_happen("nothing has this key")
    lagging = reconciler(mail, settle=30.0)
    words = [
        weigh(answer, reconciler(mail), probe, 200.0).verdict,
        weigh(answer, reconciler(mail, reads_see_writes=True), probe, 100.0).verdict,
        weigh(answer, lagging, probe, 129.0).verdict,
        weigh(answer, lagging, probe, 130.0).verdict,
    ]
    no, yes = VerdictKind.CANNOT_TELL, VerdictKind.DID_NOT_HAPPEN
    assert words == [no, yes, no, yes]


async def test_a_service_that_is_gone_decides_nothing_until_it_is_back(
    tmp_path: Path, guard: Guard, hooked: Patches
) -> None:
    with service(tmp_path / "mail", "http-json") as mail:
        key = await _lost(mail, guard, "die")
        found = reconciler(mail, reads_see_writes=True)
        answer = await ask(found, _probe(key))
        assert isinstance(answer, NoVerdict)
        finding = weigh(answer, found, _probe(key), 200.0)
        assert finding == Finding(None, f"error: {answer.why}")
    with service(tmp_path / "mail", "http-json") as again:
        assert (await ask(reconciler(again), _probe(key))) == happened(
            "sent x as number 1", "found by its key"
        )
    assert json.loads((tmp_path / "mail" / "effects").read_text())["key"] == key
