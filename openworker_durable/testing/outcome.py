"""What one process did, and what it left on disk."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..models import Execution
from ..thread import Message
from .effects import Effect
from .scenario import Scenario

KILL_CODES = (9, -15) if sys.platform == "win32" else (-9,)
"""Exit codes of a process that killed itself, or was killed."""

ANSWERS = "person-answers.jsonl"
"""What the scripted person said to each prompt, noted before the host was told."""


def note_answer(state_dir: Path, session: str, call: str, word: str) -> None:
    """Note what the scripted person is about to say; a kill does not take it back."""
    line = json.dumps({"session": session, "call": call, "word": word})
    with open(state_dir / ANSWERS, "a", encoding="utf-8") as file:
        file.write(line + "\n")


@dataclass
class Outcome:
    """What one process did, and what it left on disk.

    Args:
        scenario: what it was to do.
        exit_code: 0 when it ended by itself, minus the signal's number when it was killed.
        hung: it had to be ended because its time was over.
        thread: the saved conversation; unreadable lines are left out.
        items: the session's inbox items as saved.
        rows: the session's rows in the ledger, without results.
        deleted: the session was deleted, and only its rows are left.
        allowed: ids of the calls that a person allowed: by the scripted person's own notes, the
            inbox, and the audit table, of which a kill may take the last two.
        effects: what the service did for the session, in order.
        told: the process's own report; empty when it was killed.
        trace: the stacks of a process that hung.
    """

    scenario: Scenario
    exit_code: int
    hung: bool = False
    thread: list[Message] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Execution] = field(default_factory=list)
    deleted: bool = False
    allowed: frozenset[str] = frozenset()
    effects: list[Effect] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    trace: str = ""

    @property
    def killed(self) -> bool:
        """Say whether the process died by a kill, its own or ours."""
        return self.exit_code in KILL_CODES and not self.hung

    @property
    def ended_by(self) -> str:
        """Return how the process ended, in a word or two."""
        if self.hung:
            return "hung"
        if self.killed:
            return "TerminateProcess" if sys.platform == "win32" else "SIGKILL"
        return f"exit {self.exit_code}"

    @property
    def hits(self) -> Counter[str]:
        """Return how often each place was reached; empty when the process was killed."""
        return Counter(self.told.get("hits", ()))

    @property
    def errors(self) -> list[str]:
        """Return what went wrong inside the process: exceptions and logged errors."""
        return list(self.told.get("errors", ()))

    @property
    def provider_errors(self) -> list[str]:
        """Return what the model's service refused or failed at."""
        return list(self.told.get("provider_errors", ()))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of the host's events of one type."""
        return [e.get("data", {}) for e in self.told.get("events", ()) if e.get("type") == kind]

    def count(self, key: str) -> int:
        """Return how often `key` was done."""
        return sum(e.key == key for e in self.effects)

    def pending(self, kind: str) -> list[dict[str, Any]]:
        """Return the pending inbox items of one kind."""
        return [i for i in self.items if i.get("kind") == kind and i.get("state") == "pending"]
