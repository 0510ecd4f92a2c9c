"""Records to look at, made through the ledger's own verbs, and ways to run the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from openworker_durable import Ledger, verbs
from openworker_durable.cli import app
from openworker_durable.ledger import DATABASE
from openworker_durable.models import Authority, Intent, Outcome, ToolIdentity
from openworker_durable.redact import preview
from openworker_durable.snapshot import encode
from openworker_durable.states import AuthorityKind, Decision, Reason, State

CANARY = "c4n4ry-not-to-be-seen"
AT = 1_750_000_000.25
OWNER = "gone"


def xid(tail: str) -> str:
    """Return a full id that begins with `x` and `tail`."""
    return "x" + tail.ljust(32, "0")


@dataclass
class Record:
    """A ledger under construction in `state`."""

    state: Path
    ledger: Ledger

    def intent(
        self, tail: str, tool: str = "send_email", session: str = "s1", **arguments: Any
    ) -> Intent:
        given = {"to": "a@example.org", "body": CANARY, "token": CANARY} | arguments
        return Intent(
            session_id=session, incarnation="life", tool_call_id=f"call_{tail}",
            execution_id=xid(tail), tool=ToolIdentity(name=tool, schema_digest="5" * 16),
            intent_digest="d" * 40, preview=preview(given),
        )  # fmt: skip

    def dispatch(
        self, tail: str, *, at: float = AT, owner: str = OWNER, ref: str = "item-1", **more: Any
    ) -> Intent:
        kind = AuthorityKind.ITEM if ref else AuthorityKind.GRANT
        intent = self.intent(tail, **more)
        self.ledger.run(verbs.dispatch, intent, Authority(kind=kind, ref=ref), owner, at)
        return intent

    def finish(self, tail: str, state: State = State.SUCCEEDED, *, acknowledged: bool) -> None:
        reason = Reason.RETURNED if state is State.SUCCEEDED else Reason.RAISED
        shot = encode({"echo": CANARY, "_display": {"card": CANARY}})
        outcome = Outcome(state=state, reason=reason, snapshot=shot)
        self.ledger.run(verbs.finish, xid(tail), 1, OWNER, outcome, AT + 1)
        if acknowledged:
            self.ledger.run(verbs.acknowledge, xid(tail), 1, AT + 2)

    def lose(self, tail: str, attempt: int = 1) -> None:
        lost = self.ledger.run(
            verbs.lose, xid(tail), attempt, OWNER, Reason.OWNER_DIED, AT + 1
        )  # fmt: skip
        assert lost

    def decide(self, tail: str, decision: Decision, note: str = "") -> None:
        self.ledger.run(verbs.decide, xid(tail), 1, decision, "inbox", note, AT + 3)


@contextmanager
def record(state: Path) -> Iterator[Record]:
    """Make, or go on with, the record in a folder; closed in the end."""
    state.mkdir(exist_ok=True)
    made = Record(state, Ledger(state / DATABASE))
    try:
        yield made
    finally:
        made.ledger.close()


def every_kind(state: Path) -> Path:
    """Make a record with an execution in every state that a command has words for."""
    with record(state) as r:
        r.dispatch("a1", ref="item-a1", at=AT)
        r.finish("a1", acknowledged=True)
        r.dispatch("a2", ref="item-a2", at=AT + 10, tool="run_shell")
        r.finish("a2", State.FAILED, acknowledged=True)
        r.dispatch("b1", ref="", at=AT + 20)
        r.dispatch("b2", ref="item-b2", at=AT + 30, session="s2")
        r.lose("b2")
        intent = r.dispatch("b3", ref="item-b3", at=AT + 40)
        r.lose("b3")
        r.decide("b3", Decision.RETRY)
        r.ledger.run(verbs.retry, intent, OWNER, AT + 50)
        r.dispatch("b4", ref="item-b4", at=AT + 60)
        r.lose("b4")
        r.decide("b4", Decision.HAPPENED, "seen in the outbox")
        r.finish("b4", State.FAILED, acknowledged=False)
        r.dispatch("b5", ref="item-b5", at=AT + 70)
        r.finish("b5", acknowledged=False)
        r.ledger.run(verbs.vouch, r.intent("b6"), Reason.LEGACY, "", OWNER, AT + 80)
    return state


def run(*args: object, env: dict[str, str | None] | None = None) -> Result:
    """Run a command in this process, 80 columns wide."""
    settings: dict[str, str | None] = {"COLUMNS": "80", "NO_COLOR": "1", **(env or {})}
    return CliRunner().invoke(app, [str(a) for a in args], env=settings)


def run_json(*args: object, code: int = 0) -> Any:
    """Run a command with `--json` and return what it printed."""
    result = run(*args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def call(*args: object, before: str = "", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a real process; `before` is Python that runs in it first."""
    command = [sys.executable, "-m", "openworker_durable.cli", *(str(a) for a in args)]
    if before:
        script = f"{before}\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", script, *command]
    return subprocess.run(
        command, capture_output=True, timeout=60, check=False, env={**os.environ, **env}
    )


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder with its content."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }  # fmt: skip
