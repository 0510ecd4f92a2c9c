"""The crash kit: real processes, real kills, restarts, and what is on disk afterwards.

    with EffectService() as service:
        lab = CrashLab(tmp_path, service)
        scenario = one_turn(lab.folder(), kill=Kill("in_tool_after_effect"))
        lab.run(scenario)                            # dies by SIGKILL
        outcome = lab.run(scenario.then())           # start, resume, settle
        assert check_invariants(outcome) == []

A kill tests the death of a process, not the loss of power.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import shutil
import sqlite3
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from .. import rows
from ..hosts.files import read_json_tolerant
from ..ledger import DATABASE, Ledger
from ..models import Execution
from ..thread import Message
from . import child as child_module
from .effects import Effect, EffectService
from .player import LOOK, flag_of
from .scenario import PLACES, Kill, Scenario

SECONDS = 30.0
"""How long a process may take before it counts as hung."""

KILL_CODES = (9, -15) if sys.platform == "win32" else (-9,)
"""Exit codes of a process that killed itself, or was killed."""

_starting = threading.Lock()


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


class Child:
    """A process under test that runs now.

    Args:
        lab: the lab that started it.
        scenario: what it plays.
        process: the process.
        report: where it writes its report.
    """

    def __init__(
        self, lab: CrashLab, scenario: Scenario, process: BaseProcess, report: Path
    ) -> None:
        self.lab, self.scenario, self.process, self.report = lab, scenario, process, report

    def kill(self) -> None:
        """Kill it now; does nothing when it has ended."""
        with _starting:
            self.process.kill()

    def paused(self, name: str, seconds: float = SECONDS) -> bool:
        """Wait until it is at its step `pause` of that name; say whether it got there."""
        here, end = flag_of(self.report, name, "here"), time.monotonic() + seconds
        while not here.exists():
            if self.ended(LOOK) or time.monotonic() > end:
                return here.exists()
        return True

    def go(self, name: str) -> None:
        """Let it go on from its step `pause` of that name."""
        flag_of(self.report, name, "go").touch()

    def ended(self, seconds: float | None = None) -> bool:
        """Wait for its end, at most so many seconds; say whether it has ended."""
        return bool(wait([self.process.sentinel], seconds))

    def wait(self, seconds: float = SECONDS) -> Outcome:
        """Wait until it ends and look at what it left; a hung one is ended."""
        hung = not self.ended(seconds)
        if hung:
            self.kill()
            self.ended()
        with _starting:  # whoever starts a process polls all others, and only one may read
            self.process.join()
            code = self.process.exitcode
            self.process.close()
        outcome = self.lab.look(self.scenario, 0 if code is None else code)
        outcome.hung = hung
        outcome.told = _read(self.report)
        if hung:
            outcome.trace = child_module.trace_of(self.report).read_text(encoding="utf-8")
        return outcome


class CrashLab:
    """Starts processes over state folders and kills them.

    Args:
        folder: where state folders and reports go.
        service: the outside world.
        seconds: how long a process may take before it counts as hung.
    """

    def __init__(self, folder: Path, service: EffectService, *, seconds: float = SECONDS) -> None:
        self.base = folder
        self.service = service
        self.seconds = seconds
        self._numbers = itertools.count(1)
        (folder / "reports").mkdir(parents=True, exist_ok=True)

    # -- state folders
    def folder(self) -> Path:
        """Return a new state folder, not made yet."""
        return self.base / f"state-{next(self._numbers)}"

    def copy(self, state_dir: Path) -> Path:
        """Return a new state folder that begins as a copy of another, effects included."""
        new = self.folder()
        if state_dir.exists():
            shutil.copytree(state_dir, new)
            self.service.adopt(str(state_dir), str(new))
        return new

    # -- processes
    def start(self, scenario: Scenario) -> Child:
        """Start a process and do not wait for it."""
        report = self.base / "reports" / f"{next(self._numbers)}.json"
        args = (scenario, self.service.url, report, self.seconds - 1)
        with _starting, _no_main():
            process = _context().Process(target=child_module.main, args=args, daemon=True)
            process.start()
        return Child(self, scenario, process, report)

    def run(self, scenario: Scenario, *, kill_after: float | None = None) -> Outcome:
        """Start a process and wait for its end.

        Args:
            kill_after: kill it from outside after so many seconds, unless it ended before.
        """
        child = self.start(scenario)
        if kill_after is not None:
            child.ended(kill_after)
            child.kill()
        return child.wait(self.seconds)

    def look(self, scenario: Scenario, exit_code: int = 0) -> Outcome:
        """Look at a state folder as it is on disk now."""
        state, session = scenario.state_dir, scenario.session
        items = _read(state / "inbox.json").get("items", [])
        effects = self.service.effects(scenario.world)
        recorded, living = _recorded(state, session)
        return Outcome(
            scenario,
            exit_code,
            thread=_saved_thread(state / "conversations" / f"{session}.jsonl"),
            items=[i for i in items if i.get("session_id") == session],
            rows=recorded,
            deleted=bool(recorded) and not living,
            effects=[e for e in effects if e.body.get("session") == session],
        )


def every_kill(
    lab: CrashLab, scenario: Scenario, places: tuple[str, ...] = PLACES
) -> Iterator[Scenario]:
    """Yield the scenario once for every time it reaches a kill place, killed there.

    The scenario's state folder is never touched: it is copied for a run without a kill, which
    tells the places, and for each scenario that is yielded.

    Args:
        places: only these.
    """
    clean = lab.run(replace(scenario, state_dir=lab.copy(scenario.state_dir), kill=None))
    if clean.exit_code != 0 or clean.hung or clean.errors:
        raise RuntimeError(f"the scenario fails without a kill: {clean.errors} {clean.trace}")
    for place, times in clean.hits.items():
        for nth in range(1, times + 1):
            if place in places:
                folder = lab.copy(scenario.state_dir)
                yield replace(scenario, state_dir=folder, kill=Kill(place, nth))


# -- what is on disk
def _read(path: Path) -> dict[str, Any]:
    found = read_json_tolerant(path) if path.exists() else None
    return found if isinstance(found, dict) else {}


def _saved_thread(path: Path) -> list[Message]:
    messages: list[Message] = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
    return messages


def _recorded(state: Path, session: str) -> tuple[list[Execution], bool]:
    """Return a session's rows, and whether the ledger knows it as living."""
    if not (state / DATABASE).is_file():
        return [], False
    # A kill inside a transaction may leave a journal that only a writer can roll back.
    with contextlib.closing(sqlite3.connect(state / DATABASE)) as conn:
        conn.execute("SELECT count(*) FROM sqlite_master").fetchone()
    with contextlib.closing(Ledger(state / DATABASE)) as ledger:
        found = [r for r in ledger.known(rows.all_rows(100_000)) if r.session_id == session]
        living = bool(ledger.known(rows.session(session)))
    return sorted(found, key=lambda r: (r.dispatched_at, r.attempt)), living


# -- starting processes cheaply
def _context() -> Any:
    """Return a way to start processes: a fork of a small server that has imported everything."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([child_module.__name__])
    return context


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's main module again in every child.

    A child needs nothing of it, and running pytest's or a console script's takes longer than
    everything else.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
