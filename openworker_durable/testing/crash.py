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
import multiprocessing
import shutil
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from . import child as child_module
from .disk import fill, read_object
from .effects import EffectService
from .outcome import Outcome
from .player import LOOK, flag_of
from .scenario import PLACES, Kill, Scenario

SECONDS = 30.0
"""How long a process may take before it counts as hung."""

KILL_CODES = (9, -15) if sys.platform == "win32" else (-9,)
"""Exit codes of a process that killed itself, or was killed."""

_starting = threading.Lock()


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
        outcome.told = read_object(self.report)
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
        outcome = Outcome(scenario, exit_code)
        outcome.effects = [
            e for e in self.service.effects(scenario.world)
            if e.body.get("session") == scenario.session
        ]  # fmt: skip
        fill(outcome)
        return outcome


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
