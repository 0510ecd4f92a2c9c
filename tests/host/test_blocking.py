"""A host that does not fit: protected tools refuse with the reason, read-only ones go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from openworker_durable import install, uninstall
from openworker_durable.hosts.blocking import ToolsBlocked, block, reason
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.patching import Patches
from openworker_durable.hosts.reference import toolchain
from openworker_durable.hosts.reference.engine import TurnEngine
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.providers import AssistantTurn, ScriptedProvider, ToolCall
from openworker_durable.hosts.reference.tools import ToolMetadata, ToolRegistry
from tests.host.harness import Outside, call, reply

WHY = reason(["engine._loop: not found"])


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    uninstall(names=REFERENCE)


@pytest.fixture
def patches() -> Iterator[Patches]:
    made = Patches()
    yield made
    made.restore()


async def test_a_turn_on_a_blocked_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = Outside()
    script = [reply(call("send", "c1", what="x"), call("lookup", "c2", what="y")),
              AssistantTurn(text="done", finish_reason="stop")]  # fmt: skip
    manager = SessionManager(
        data_dir=tmp_path, provider=ScriptedProvider(script), tools=outside.tools()
    )
    engine = manager.get_engine("s1")  # built before
    monkeypatch.delattr(TurnEngine, "retry")
    report = install(names=REFERENCE)
    assert report.blocked
    engine.permissions.allow_tool_for_session("send")
    _events = [e async for e in engine.run("go")]
    answers = {m["tool_call_id"]: m["content"] for m in engine.messages if m["role"] == "tool"}
    assert outside.effects == []
    assert outside.reads == ["y"]
    assert "engine.retry: not found" in answers["c1"]
    assert "start the host without it" in answers["c1"]
    assert "y" in answers["c2"]
    uninstall(names=REFERENCE)
    assert engine.registry.execute("send", {"what": "z"})["ok"]
    await manager.aclose()


def test_a_gates_effect_is_refused_whatever_its_handler_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = SessionManager(data_dir=tmp_path, provider=ScriptedProvider([]))
    monkeypatch.delattr(TurnEngine, "retry")
    assert install(names=REFERENCE).blocked
    for answer in (
        manager.create_team("s1", [{"persona": "tester"}]),
        manager.board_create_items("s1", [{"title": "t"}]),
        manager.promote_workspace("s1", str(tmp_path)),
    ):
        assert "engine.retry: not found" in answer["error"]
    with pytest.raises(ToolsBlocked):
        toolchain.install("scanner")
    assert not (tmp_path / "teams.jsonl").exists()


@pytest.mark.parametrize("which", ["decode", "item", "events", "event_type", "compaction"])
def test_a_host_that_lacks_what_is_only_used_does_not_fit(which: str) -> None:
    broken = replace(REFERENCE, **{which: f"{REFERENCE.package}.nowhere:Nothing"})
    try:
        report = install(names=broken)
        assert report.blocked
        assert which in str(report.problems)
    finally:
        uninstall(names=broken)


async def test_a_gate_of_a_blocked_host_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [reply(ToolCall("g1", "propose_team", {"members": [{"persona": "tester"}]})),
              AssistantTurn(text="done", finish_reason="stop")]  # fmt: skip
    manager = SessionManager(data_dir=tmp_path, provider=ScriptedProvider(script))
    monkeypatch.delattr(TurnEngine, "retry")
    assert install(names=REFERENCE).blocked
    await manager.drive_attended("s1", "go")
    answer = next(m for m in manager.session_messages("s1") if m["role"] == "tool")
    assert "nobody can be asked here" in answer["content"]
    assert manager.inbox.list() == []
    assert manager.get_engine("s1").team_approver is not None, "it is only kept from this call"
    await manager.aclose()


def test_the_reason_names_some_seams_and_the_remedy() -> None:
    assert "engine._loop: not found" in WHY
    assert "Upgrade openworker-durable" in WHY
    many = reason([f"seam{n}: not found" for n in range(9)])
    assert "seam3" in many
    assert "seam4" not in many
    assert "and others" in many


def _registry(**tools: ToolMetadata | None) -> ToolRegistry:
    registry = ToolRegistry()
    for name, metadata in tools.items():

        def tool() -> str:
            return "ran"

        tool.__name__ = name
        registry.register(tool, metadata=metadata)
    return registry


@pytest.mark.parametrize(
    ("name", "metadata", "blocked"),
    [
        ("peek", ToolMetadata(), False),
        ("peek", None, False),
        ("send", ToolMetadata(requires_approval=True), True),
        ("send", ToolMetadata(risk_level="high"), True),
        ("remember", None, True),
        ("mcp__box__put", ToolMetadata(), True),
    ],
)
def test_what_is_blocked(
    patches: Patches, name: str, metadata: ToolMetadata | None, blocked: bool
) -> None:
    registry = _registry(**{name: metadata})
    block(REFERENCE, patches, WHY)
    if not blocked:
        assert registry.execute(name, {}) == "ran"
        return
    with pytest.raises(ToolsBlocked, match=r"engine\._loop"):
        registry.execute(name, {})
    with pytest.raises(ToolsBlocked):
        registry.execute(name=name, arguments={})


def test_an_unknown_tool_is_the_hosts_own_error(patches: Patches) -> None:
    block(REFERENCE, patches, WHY)
    with pytest.raises(KeyError):
        _registry().execute("nothing", {})


def _odd_host(monkeypatch: pytest.MonkeyPatch, **body: Any) -> tuple[Any, type]:
    """Return the names of a host whose registry lies elsewhere and has another shape."""
    module: Any = ModuleType("odd_host.somewhere")
    cls = type("ToolRegistry", (), {"__module__": module.__name__, **body})
    module.ToolRegistry = cls
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = dict.fromkeys(("registry", "engine", "manager"), "odd_host.gone:X")
    return replace(REFERENCE, package="odd_host", **names), cls


def test_a_registry_found_by_its_class_name(
    patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SimpleNamespace(name="send", metadata=ToolMetadata(requires_approval=True), func=None)
    names, cls = _odd_host(
        monkeypatch, get=lambda _self, name: spec if name == "send" else None,
        call=lambda _self, request: f"ran {request.name}",
    )  # fmt: skip
    assert block(names, patches, WHY) == ["odd_host.somewhere:ToolRegistry.call"]
    with pytest.raises(ToolsBlocked):
        cls().call(SimpleNamespace(name="send"))
    assert cls().call(SimpleNamespace(name="peek")) == "ran peek"


def test_where_the_tool_cannot_be_told_everything_is_blocked(
    patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, cls = _odd_host(monkeypatch, execute=lambda *_: "ran", get=lambda _self, _name: 7)
    assert block(names, patches, WHY)
    for argument in (object(), 3, "peek"):
        with pytest.raises(ToolsBlocked):
            cls().execute(argument)
    with pytest.raises(ToolsBlocked):
        cls().execute()


def test_nothing_to_block(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    names, _cls = _odd_host(monkeypatch, get=lambda *_: None)
    assert block(names, patches, WHY) == []


def test_a_registry_of_another_class_name(
    patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("odd_host.tools")
    module.Tools = type("Tools", (ToolRegistry,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = replace(REFERENCE, package="odd_host", registry="odd_host.tools:Tools")
    assert len(block(names, patches, WHY)) == 1
    with pytest.raises(ToolsBlocked):
        module.Tools().execute("remember", {})
    patches.restore()
    assert "execute" not in vars(module.Tools)
