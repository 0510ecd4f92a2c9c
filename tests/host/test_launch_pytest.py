"""The pytest plugin: attached for a whole run, every engine bound on request, rows counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import needs

HELPER = """
from openworker_durable import pytest_plugin
from openworker_durable.hosts.names import REFERENCE
pytest_plugin.HOST = REFERENCE
{more}
"""

TESTS = """
import asyncio
from pathlib import Path
from openworker_durable.hosts.attach import attached
from openworker_durable.hosts.names import REFERENCE
from openworker_durable.hosts.reference.engine import ApprovalOutcome, TurnEngine
from openworker_durable.hosts.reference.manager import SessionManager
from openworker_durable.hosts.reference.permissions import PermissionEngine
from openworker_durable.hosts.reference.providers import AssistantTurn, ScriptedProvider, ToolCall
from openworker_durable.hosts.reference.tools import ToolMetadata, ToolRegistry

RISKY = ToolMetadata(requires_approval=True)
OPEN = []

def send(to="a"):
    return "sent"

def script():
    calls = [ToolCall("c1", "send", {}), ToolCall("c2", "send", {"to": "b"})]
    return ScriptedProvider([AssistantTurn(tool_calls=calls, finish_reason="tool_calls"),
                             AssistantTurn(text="done", finish_reason="stop")])

async def drive(engine):
    return [e async for e in engine.run("go")]

def test_alone(tmp_path):
    assert attached(REFERENCE) is not None
    async def yes(request):
        return ApprovalOutcome("once")
    registry = ToolRegistry()
    registry.register(send, metadata=RISKY)
    engine = TurnEngine(provider=script(), registry=registry, model="m", approver=yes,
                        permissions=PermissionEngine(str(tmp_path)))
    asyncio.run(drive(engine))
    assert [m["content"] for m in engine.messages if m["role"] == "tool"] == ["sent", "sent"]

def test_in_a_session(tmp_path):
    send.__aisuite_tool_metadata__ = RISKY
    manager = SessionManager(data_dir=tmp_path, provider=script(), tools=[send])
    engine = manager.get_engine("s1")
    engine.permissions.allow_tool_for_session("send")
    asyncio.run(drive(engine))
    OPEN.append(manager._durable_runtime)
    assert engine._durable.session_id == "s1"

def test_what_the_test_before_left_open_is_closed():
    assert OPEN == [] or OPEN[0]._closed
"""


def run(folder: Path, *options: str, more: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "helper_of_host.py").write_text(HELPER.format(more=more))
    (folder / "test_host.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]),
    }
    plugins = ["-p", "helper_of_host", "-p", "openworker_durable.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *options]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )


def last(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-3:]


def test_a_session_is_recorded_and_counted(tmp_path: Path) -> None:
    passed, said, rows = last(run(tmp_path))
    assert passed.startswith("3 passed")
    assert "attached to the reference host" in said
    assert rows == "durable: 2 ledger rows"


def test_every_engine_is_bound_on_request(tmp_path: Path) -> None:
    assert last(run(tmp_path, "--durable-bind-all"))[-1] == "durable: 4 ledger rows"


def test_workers_of_xdist_are_counted(tmp_path: Path) -> None:
    needs.need_package("xdist")
    done = last(run(tmp_path, "--durable-bind-all", "-n", "2"))
    assert done[-1] == "durable: 4 ledger rows"
    assert "3 passed" in done[0]


def test_no_temporary_folder_is_left(tmp_path: Path) -> None:
    temp = tmp_path / "temp"
    temp.mkdir()
    more = f"import tempfile; tempfile.tempdir = {str(temp)!r}"
    run(tmp_path, "--durable-bind-all", more=more)
    assert [p for p in temp.iterdir() if p.name.startswith("durable-")] == []


def test_a_host_that_does_not_fit_is_said_to_be_blocked(tmp_path: Path) -> None:
    more = (
        "from openworker_durable.hosts.reference.engine import TurnEngine\nTurnEngine.retry = None"
    )
    done = run(tmp_path, more=more)
    assert "its protected tools are blocked" in done.stdout
    assert done.stdout.strip().splitlines()[-1] == "durable: 0 ledger rows"
