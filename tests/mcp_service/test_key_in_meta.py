"""The key of a protected call in `_meta`, through the official SDK and a real server."""

from __future__ import annotations

import asyncio
import sys
import types
from datetime import timedelta
from typing import Any

import pytest
from mcp import ClientSession
from mcp.shared.session import BaseSession
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ClientRequest,
    PingRequest,
)

from openworker_durable.guard import Guard
from openworker_durable.hosts.mcp_hooks import MCP, McpHooks, takes_key
from openworker_durable.hosts.patching import Patches
from openworker_durable.keys import META_KEY, mcp_meta
from tests.calls import protected, rows
from tests.mcp_service.client import Connection, Service, connected

DEADLINE = 20.0


async def test_g6_the_key_arrives_the_same_in_every_attempt(
    mail: Service, guard: Guard, hooked: Patches
) -> None:
    mail.script("internal", "reply")
    async with connected(mail) as connection:
        send = connection.bridge("send", DEADLINE)  # in a thread, onto this loop, as the host does
        with pytest.raises(Exception, match="something inside"):
            await asyncio.to_thread(protected, guard, lambda: send(what="x"))
        await asyncio.to_thread(protected, guard, lambda: send(what="x"), again=True)
    own = rows(guard)[0].execution_id
    assert [r.attempt for r in rows(guard)] == [1, 2]
    assert mail.metas == [{META_KEY: own}] * 2


async def test_outside_a_protected_call_nothing_is_added(
    mail: Service, guard: Guard, hooked: Patches
) -> None:
    async with connected(mail) as connection:
        await connection.call("send", what="before")
        send = connection.bridge("send", DEADLINE)
        await asyncio.to_thread(protected, guard, lambda: send(what="x"))
        await connection.call("send", what="after")
    assert [META_KEY in meta for meta in mail.metas] == [False, True, False]


async def test_a_call_that_is_handed_over_late_has_the_key_all_the_same(
    guard: Guard, hooked: Patches
) -> None:
    sent = Sent()
    connection = _over(sent)

    def give_up() -> None:
        connection.hand_over("send", what="x")
        raise TimeoutError  # before the loop has come to it

    with pytest.raises(TimeoutError):
        protected(guard, give_up)
    assert not sent.metas
    await asyncio.wrap_future(connection.pending[0])
    assert sent.metas == [{META_KEY: rows(guard)[0].execution_id}]


async def test_each_call_has_its_own_key_on_one_loop(guard: Guard, hooked: Patches) -> None:
    sent = Sent()
    connection = _over(sent)
    send = connection.bridge("send", DEADLINE)
    ids = [f"c{n}" for n in range(4)]
    await asyncio.gather(
        *(asyncio.to_thread(protected, guard, lambda: send(what="x"), call_id=i) for i in ids)
    )
    keys = {meta[META_KEY] for meta in sent.metas}
    assert keys == {row.execution_id for row in rows(guard)}
    assert len(keys) == 4


class Sent:
    """Takes the requests of a session where they would be sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    @property
    def metas(self) -> list[Any]:
        return [r.get("params", {}).get("_meta") for r in self.requests]

    async def send_request(self, request: Any, *args: Any, **kwargs: Any) -> CallToolResult:
        self.requests.append(request.model_dump(by_alias=True, mode="json", exclude_none=True))
        return CallToolResult(content=[], isError=True)


def _over(sent: Sent) -> Connection:
    nowhere: Any = None
    connection = Connection(nowhere)
    connection.session = _session(sent)
    return connection


def _session(sent: Sent) -> Any:
    """Return an SDK session whose base sends nothing."""

    class Session(ClientSession):
        def __init__(self) -> None:
            """Open nothing."""

    session: Any = Session()
    session.sent = sent
    return session


@pytest.fixture(autouse=True)
def _to_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions made by `_session` give what they would send to their `Sent`."""
    real = BaseSession.send_request

    async def send_request(session: Any, *args: Any, **kwargs: Any) -> Any:
        sent = getattr(session, "sent", None)
        return await (sent.send_request if sent else real.__get__(session))(*args, **kwargs)

    monkeypatch.setattr(BaseSession, "send_request", send_request)


def _in_call(guard: Guard, work: Any) -> str:
    protected(guard, lambda: asyncio.run(work))
    return rows(guard)[0].execution_id


def test_what_the_caller_put_there_stays(guard: Guard, hooked: Patches) -> None:
    sent = Sent()
    session = _session(sent)

    async def work() -> None:
        await session.call_tool("send", {}, meta={"com.example/trace": "t", "progressToken": 7})
        await session.call_tool("send", {}, meta={META_KEY: "mine"})
        await session.call_tool("send", {}, meta=mcp_meta("second"))
        await session.call_tool("send", {}, timedelta(seconds=1))

    own = _in_call(guard, work())
    assert sent.metas[0] == {"com.example/trace": "t", "progressToken": 7, META_KEY: own}
    assert sent.metas[1] == {META_KEY: "mine"}
    assert sent.metas[2] not in ({META_KEY: own}, None)
    assert sent.metas[3] == {META_KEY: own}


def test_only_tool_calls_carry_it_and_no_request_is_changed(guard: Guard, hooked: Patches) -> None:
    sent = Sent()
    session = _session(sent)
    params = CallToolRequestParams(name="send", arguments={"what": "x"})
    request = ClientRequest(CallToolRequest(method="tools/call", params=params))

    async def work() -> None:
        await session.send_request(ClientRequest(PingRequest(method="ping")), CallToolResult)
        await session.send_request(request, CallToolResult)

    own = _in_call(guard, work())
    assert sent.metas == [None, {META_KEY: own}]
    assert params.meta is None


def test_detaching_leaves_the_sdk_as_it_was() -> None:
    assert "send_request" not in vars(ClientSession)
    one, other, registry = Patches(), Patches(), type("Registry", (), {"execute": lambda s: 1})
    MCP.attach(one, registry)
    MCP.attach(other, type("Other", (), {"execute": lambda s: 1}))
    ours: Any = vars(ClientSession)["send_request"]
    assert not hasattr(ours.__wrapped__, "__durable__"), "wrapped once for all hosts"
    one.restore()
    assert vars(ClientSession)["send_request"] is ours
    other.restore()
    assert "send_request" not in vars(ClientSession)
    assert not hasattr(vars(registry)["execute"], "__durable__")


def test_an_sdk_that_the_host_imports_later_is_found_then(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = sys.modules["mcp"]
    monkeypatch.delitem(sys.modules, "mcp")
    registry: Any = type("Registry", (), {"execute": lambda self, name: name})
    hooks, patches = McpHooks(), Patches()
    hooks.attach(patches, registry)
    assert registry().execute("send") == "send"
    monkeypatch.setitem(sys.modules, "mcp", types.ModuleType("mcp"))  # on its way in
    registry().execute("send")
    assert "send_request" not in vars(ClientSession)
    monkeypatch.setitem(sys.modules, "mcp", sdk)
    registry().execute("send")
    assert "send_request" in vars(ClientSession)
    patches.restore()
    assert "send_request" not in vars(ClientSession)


def test_an_sdk_that_would_drop_the_key_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert takes_key(sys.modules["mcp"])
    strange: Any = types.ModuleType("mcp")
    strange.ClientSession = type("ClientSession", (), {"send_request": None})
    monkeypatch.setitem(sys.modules, "mcp", strange)
    hooks, patches = McpHooks(), Patches()
    registry: Any = type("Registry", (), {"execute": lambda self: 1})
    hooks.attach(patches, registry)
    registry().execute()
    assert strange.ClientSession.send_request is None
    assert caplog.text.count("without a key") == 1
    patches.restore()
