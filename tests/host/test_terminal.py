"""The terminal UI: an identity for its engine, saved around effects, told what is open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from openworker_durable import install, rows, thread, uninstall, verbs
from openworker_durable.errors import SeamsDoNotFit
from openworker_durable.hosts.attach import attach
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.reference.conversations import ConversationStore
from openworker_durable.hosts.reference.engine import TurnEngine
from openworker_durable.hosts.reference.events import Event
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.permissions import PermissionEngine
from openworker_durable.hosts.reference.prompts import ApprovalOutcome
from openworker_durable.hosts.reference.providers import AssistantTurn, ScriptedProvider
from openworker_durable.hosts.reference.sessions import SessionRecord
from openworker_durable.hosts.reference.tools import ToolRegistry
from openworker_durable.hosts.terminal import SEAMS_TERMINAL, check_all
from openworker_durable.owner import ServerLock
from openworker_durable.states import Decision, State
from tests import needs
from tests.contract.kit import in_state
from tests.host.harness import Outside, call, reply
from tests.waiting import until

DONE = AssistantTurn(text="done", finish_reason="stop")
SESSION = "tui1"


class App:
    """An app of the terminal UI's shape: builds its engine itself, saves at the end of a turn."""

    def __init__(self, store: Any, outside: Outside, script: list[Any], session_id: str) -> None:
        self._session_store, self._session_id = store, session_id
        self.outside, self.provider = outside, ScriptedProvider(list(script))
        self._root = store.base if store is not None else Path()
        self.engine: Any = None
        self.rendered: list[str] = []
        self.asked: list[str] = []
        self.resumed: list[Any] = []

    def build(self, messages: list[Any]) -> Any:
        registry = ToolRegistry()
        registry.register_all(self.outside.tools())
        return TurnEngine(
            provider=self.provider, registry=registry, approver=self._approve, model="m",
            permissions=PermissionEngine(self._root), messages=messages,
        )  # fmt: skip

    def on_mount(self) -> None:
        self.engine = self.build(self.resumed)

    async def _approve(self, request: Any) -> Any:
        self.asked.append(request.tool_name)
        return ApprovalOutcome("once")

    async def run_turn(self, text: str) -> None:
        async for event in self.engine.run(text):
            self._render_event(event)
        self._persist_session()

    def _persist_session(self) -> None:
        if self._session_store is None:
            return
        made = SessionRecord(
            session_id=self._session_id, workspace="", model="m", mode="interactive",
            messages=self.engine.messages,
        )  # fmt: skip
        self._session_store.save(made)

    def _render_event(self, event: Event) -> None:
        self.rendered.append(event.type.value)

    def _write(self, text: str) -> None:
        self.rendered.append(text)

    def _handle_command(self, command: str) -> None:
        if command == "/clear":
            self.engine = self.build([])
            self.rendered.clear()


NAMES = replace(REFERENCE, terminal=f"{__name__}:App")


@dataclass
class Terminal:
    """One state folder, and apps on it one after the other."""

    folder: Path
    outside: Outside

    def app(self, *script: Any, resumed: list[Any] | None = None) -> App:
        app = App(ConversationStore(self.folder), self.outside, list(script), SESSION)
        app.resumed = resumed or []
        app.on_mount()
        return app


def _ledger(app: App) -> Any:
    return app.engine._durable.runtime.ledger


def _saved(folder: Path) -> str:
    path = folder / "conversations" / f"{SESSION}.jsonl"
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    _importable(monkeypatch)
    attachment = attach(NAMES)
    yield Terminal(tmp_path, Outside())
    attachment.detach()


def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the app be found by its name, however the test runner imported this file."""
    module: Any = type(sys)(__name__)
    module.App = App
    monkeypatch.setitem(sys.modules, __name__, module)


async def test_a_turn_is_saved_before_the_first_effect_and_recorded(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = terminal.app(reply(call("send", "c1", what="x")), DONE)
    seen: list[str] = []
    effect = terminal.outside.effect

    def looking(name: str, what: str) -> Any:
        seen.append(_saved(terminal.folder))
        return effect(name, what)

    monkeypatch.setattr(terminal.outside, "effect", looking)
    await app.run_turn("go")
    assert '"c1"' in seen[0]
    assert [(r.session_id, r.state) for r in _ledger(app).known(rows.all_rows())] == [
        (SESSION, State.SUCCEEDED)
    ]
    assert app.asked == ["send"]
    assert "done" in _saved(terminal.folder)


async def test_a_cleared_conversation_goes_on_in_the_same_session(terminal: Terminal) -> None:
    app = terminal.app(reply(call("send", "c1", what="x")), DONE,
                       reply(call("send", "c1", what="y")), DONE)  # fmt: skip
    await app.run_turn("go")
    old = app.engine
    app._handle_command("/help")
    assert app.engine is old
    app._handle_command("/clear")
    assert app.engine is not old
    assert app.engine._durable.manager._engines == {SESSION: app.engine}
    await app.run_turn("again")
    found = _ledger(app).known(rows.all_rows())
    assert len({r.execution_id for r in found}) == 2
    assert {r.session_id for r in found} == {SESSION}
    assert terminal.outside.count("send") == 2


@pytest.mark.parametrize("before", [1, 2, 3])
async def test_g14_after_clear_the_thread_on_disk_is_the_new_one(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The old conversation may be shorter, longer, or as long as the new one at its first save."""
    app = terminal.app(*[DONE] * before, reply(call("send", "c1", what="x")), DONE)
    for n in range(before):
        await app.run_turn(f"old {n}")
    app._handle_command("/clear")
    seen: list[str] = []
    effect = terminal.outside.effect

    def looking(name: str, what: str) -> Any:
        seen.append(_saved(terminal.folder))
        return effect(name, what)

    monkeypatch.setattr(terminal.outside, "effect", looking)
    await app.run_turn("send it")
    assert ['"c1"' in text for text in seen] == [True]
    assert "old" not in seen[0]
    assert [json.loads(x) for x in _saved(terminal.folder).splitlines()] == app.engine.messages
    assert thread.pairing_faults(app.engine.messages) == []


async def test_a_turn_that_outlives_clear_makes_no_protected_call(terminal: Terminal) -> None:
    app = terminal.app(reply(call("send", "c1", what="x")), DONE)
    old = app.engine
    app._handle_command("/clear")
    async for _event in old.run("go"):
        pass
    assert terminal.outside.effects == []
    assert "cannot be saved" in old.messages[-2]["content"]


async def test_an_unknown_outcome_is_told_and_never_repeated(terminal: Terminal) -> None:
    terminal.outside.raises["send"] = TimeoutError("the service was slow")
    app = terminal.app(reply(call("send", "c1", what="x")), DONE)
    await app.run_turn("go")
    [row] = _ledger(app).known(rows.all_rows())
    assert row.undecided
    [line] = [x for x in app.rendered if "openworker-durable" in x]
    assert f"openworker-durable show {row.execution_id[:10]}" in line
    assert "Inbox" in line
    assert len(app.provider.calls) == 1
    await app.run_turn("and now?")
    assert terminal.outside.count("send") == 1


async def test_a_second_start_tells_what_is_open(terminal: Terminal) -> None:
    terminal.outside.raises["send"] = TimeoutError("slow")
    app = terminal.app(reply(call("send", "c1", what="x")), DONE)
    await app.run_turn("go")
    again = terminal.app(DONE, resumed=list(app.engine.messages))
    assert any("openworker-durable show" in x for x in again.rendered)


async def test_calls_of_other_sessions_are_counted(terminal: Terminal) -> None:
    terminal.outside.raises["send"] = TimeoutError("slow")
    app = terminal.app(reply(call("send", "c1", what="x")), DONE)
    await app.run_turn("go")
    other = App(ConversationStore(terminal.folder), terminal.outside, [], "tui2")
    other.on_mount()
    [line] = other.rendered
    assert "1 call(s) of other sessions" in line
    assert "list --open" in line


async def test_a_call_whose_process_died_is_told_at_the_next_start(terminal: Terminal) -> None:
    """Also where no session manager has run since, which would have called it unknown."""
    ledger = _ledger(terminal.app(DONE))
    ledger.run(verbs.open_session, "earlier", "life")
    in_state(ledger, State.DISPATCHED, session="earlier")
    again = terminal.app(DONE)
    [line] = [x for x in again.rendered if "openworker-durable" in x]
    assert line.startswith("[yellow]openworker-durable:[/yellow] 1 call(s) of other sessions may")


async def test_the_repeat_guard_asks_once(terminal: Terminal) -> None:
    terminal.outside.raises["send"] = TimeoutError("slow")
    app = terminal.app(reply(call("send", "c1", what="x")),
                       reply(call("send", "c2", what="z")), DONE)  # fmt: skip
    await app.run_turn("go")
    app.engine.permissions.allow_tool_for_session("send")
    app.asked.clear()
    await app.run_turn("again")
    assert app.asked == ["send"]
    assert terminal.outside.count("send", "z") == 1


async def test_the_terminal_leaves_the_servers_part_to_the_server(terminal: Terminal) -> None:
    app = terminal.app(DONE)
    lock = ServerLock(terminal.folder)
    assert lock.take()
    lock.close()
    terminal.outside.raises["send"] = TimeoutError("slow")
    assert not app.engine._durable.runtime.server.held
    assert not (terminal.folder / "inbox.json").exists()


async def test_a_decision_made_elsewhere_goes_on_when_the_turn_ends(terminal: Terminal) -> None:
    terminal.outside.raises["send"] = TimeoutError("slow")
    app = terminal.app(reply(call("send", "c1", what="x")), DONE, DONE)
    await app.run_turn("go")
    ledger = _ledger(app)
    [row] = ledger.known(rows.all_rows())
    ledger.run(verbs.decide, row.execution_id, 1, Decision.HAPPENED, "test", "", 1.0)
    await app.run_turn("well?")
    told = [m for m in app.engine.messages if "happened" in str(m.get("content"))]
    assert told
    assert terminal.outside.count("send") == 1


async def test_a_decision_that_comes_as_a_turn_ends_is_taken_up(terminal: Terminal) -> None:
    terminal.outside.raises["send"] = TimeoutError("slow")
    app = terminal.app(reply(call("send", "c1", what="x")), DONE)
    await app.run_turn("go")
    ledger = _ledger(app)
    [row] = ledger.known(rows.all_rows())
    ledger.run(verbs.decide, row.execution_id, 1, Decision.HAPPENED, "test", "", 1.0)
    app._persist_session()
    await until(lambda: app.engine.messages[-1].get("content") == "done", "the turn goes on")
    assert app.rendered[-1] == "turn_end"
    assert terminal.outside.count("send") == 1


def test_an_app_without_a_store_is_left_alone(terminal: Terminal) -> None:
    app = App(None, terminal.outside, [], SESSION)
    app.on_mount()
    assert not hasattr(app.engine, "_durable")
    app._handle_command("/clear")
    app._persist_session()


def test_beside_a_session_manager_in_one_process(terminal: Terminal) -> None:
    manager = SessionManager(data_dir=terminal.folder, provider=ScriptedProvider([]), tools=[])
    app = terminal.app(DONE)
    runtime = app.engine._durable.runtime
    assert runtime.manager is manager
    assert runtime.server.held


def test_a_host_without_a_terminal_ui_fits() -> None:
    gone = replace(REFERENCE, terminal="no_such_library_x.app:App")
    assert check_all(gone).fits
    assert len(check_all(gone).findings) == len(check_all(REFERENCE).findings)


def test_a_terminal_ui_of_another_shape_is_refused_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _importable(monkeypatch)
    monkeypatch.setattr(App, "_persist_session", None)
    assert check_all(NAMES).problems == ["terminal._persist_session: not found"]
    with pytest.raises(SeamsDoNotFit, match=r"terminal\._persist_session"):
        attach(NAMES)
    report = install(names=NAMES)
    assert report.blocked
    uninstall(names=NAMES)


def test_detaching_puts_the_app_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _importable(monkeypatch)
    before = dict(vars(App))
    attachment = attach(NAMES)
    assert {s.method for s in SEAMS_TERMINAL if s.wrapped} == {
        k for k in before if vars(App)[k] is not before[k]
    }
    attachment.detach()
    assert dict(vars(App)) == before


REAL = """
import asyncio, json, os, sys
from pathlib import Path

from openworker_durable import install, rows

assert install().status.value == "attached"
from coworker.conversations import ConversationStore
from coworker.providers import AssistantTurn, ModelCapabilities, ProviderClient, ToolCall
from coworker.tui.app import ApprovalScreen, CoworkerApp

folder, life = Path(sys.argv[1]), sys.argv[2]
kill = f"echo once >> out.txt; kill -9 {os.getpid()}"
calls = [ToolCall(id="call_0", name="run_shell", arguments={"command": kill})]
script = [AssistantTurn(tool_calls=calls, finish_reason="tool_calls")] if life == "first" else []
script.append(AssistantTurn(text="all done", finish_reason="stop"))

class Scripted(ProviderClient):
    def complete(self, **_):
        return script.pop(0)
    def capabilities(self, model):
        return ModelCapabilities()

async def main():
    store = ConversationStore(folder)
    record = store.load("tui1")
    app = CoworkerApp(workspace=folder / "work", provider=Scripted(), session_store=store,
                      session_id="tui1", resume_messages=record.messages if record else None)
    async with app.run_test() as pilot:
        told = list(app.rendered)
        app.query_one("#prompt").value = "go"
        await pilot.press("enter")
        while life == "first" and not isinstance(app.screen, ApprovalScreen):
            await pilot.pause()
        if life == "first":
            await pilot.press("y")
        await app.workers.wait_for_complete()
        await pilot.pause()
        found = app.engine._durable.runtime.ledger.known(rows.all_rows())
        print(json.dumps({"told": told, "after": app.rendered, "messages": app.engine.messages,
                          "rows": [[r.state, r.tool_name, r.undecided] for r in found]}))

asyncio.run(main())
"""


@needs.host
@needs.sigkill
def test_the_real_terminal_ui_killed_in_a_call(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    env = {**os.environ, "COWORKER_STATE_DIR": str(tmp_path), "HOME": str(tmp_path),
           "COWORKER_SCRATCH_BASE": str(tmp_path / "scratch")}  # fmt: skip

    def live(life: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", REAL, str(tmp_path), life],
            env=env, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    assert live("first").returncode == -9
    second = live("second")
    assert second.returncode == 0, second.stderr
    seen = json.loads(second.stdout)
    assert (tmp_path / "work" / "out.txt").read_text() == "once\n"
    assert seen["rows"] == [["unknown", "run_shell", True]]
    [answer] = [m["content"] for m in seen["messages"] if m["role"] == "tool"]
    assert "may have happened" in answer
    assert any("all done" in line for line in seen["after"])
    third = json.loads(live("second").stdout)
    assert any("openworker-durable show" in line for line in third["told"])
    assert (tmp_path / "work" / "out.txt").read_text() == "once\n"
