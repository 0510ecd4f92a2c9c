"""The test's side of `forks`: start lives of the real host, kill them, read what they report."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KILLED = -9


def why_not() -> str:
    """Return why the real host cannot be used here, empty when it can."""
    if importlib.util.find_spec("coworker") is None:
        return "needs the real OpenWorker: `coworker` cannot be imported here"
    return "" if hasattr(os, "fork") else "needs fork and SIGKILL"


def _module(function: Callable[..., Any]) -> str:
    """Return the name another process imports a function from, also where it is `__main__`."""
    return str(function.__globals__["__spec__"].name)


class Nursery:
    """One forking process with the host imported, shared by a whole test run."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.real.forks"],
            cwd=ROOT, env={**os.environ, "HOME": str(home)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send one order and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


@dataclass
class Running:
    """A life that was started; `end` waits for it."""

    home: Real
    pid: int
    number: int

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self.home.nursery.ask(verb="kill", pid=self.pid)
        assert self.end(killed=True) is None

    def end(self, *, killed: bool = False) -> Any:
        """Wait until it has ended and return what its coroutine returned.

        Args:
            killed: it must have been ended by SIGKILL, else by itself.
        """
        code = self.home.nursery.ask(verb="wait", pid=self.pid)["code"]
        if killed:
            assert code == KILLED, f"not killed: {self.home.told(self.number)}"
            return None
        report = self.home.report(self.number)
        assert "error" not in report, report.get("error", "") + self.home.log(self.number)
        assert code == 0, self.home.log(self.number)
        return report["value"]


@dataclass
class Real:
    """One state folder of the real host, and the lives that use it one after another."""

    nursery: Nursery
    folder: Path
    lives: int = 0
    running: list[Running] = field(default_factory=list)

    def start(self, life: Callable[..., Any], *, durable: bool = True, **kwargs: Any) -> Running:
        """Start a process of the host that goes through a coroutine of a test module."""
        self.lives += 1
        answer = self.nursery.ask(
            verb="start", module=_module(life), function=life.__name__, durable=durable,
            folder=str(self.folder), number=self.lives, kwargs=kwargs,
        )  # fmt: skip
        self.running.append(Running(self, answer["pid"], self.lives))
        return self.running[-1]

    def run(self, life: Callable[..., Any], *, durable: bool = True, **kwargs: Any) -> Any:
        """Go through a whole life and return what it reports."""
        return self.start(life, durable=durable, **kwargs).end()

    def killed(self, life: Callable[..., Any], *, durable: bool = True, **kwargs: Any) -> None:
        """Go through a life that must end by SIGKILL."""
        self.start(life, durable=durable, **kwargs).end(killed=True)

    def effects(self) -> list[str]:
        """Return what the outside world saw, in order."""
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def report(self, number: int) -> dict[str, Any]:
        """Return what a life reported, empty when it was killed before."""
        path = self.folder / f"report{number}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def log(self, number: int) -> str:
        """Return the end of what a life printed."""
        path = self.folder / f"log{number}"
        return "\n" + path.read_text()[-3000:] if path.exists() else ""

    def told(self, number: int) -> str:
        """Return all that is known of how a life went."""
        return str(self.report(number)) + self.log(number)

    def thread_file(self, session: str = "s1") -> Path:
        """Return where a session's thread is saved."""
        return self.folder / "state" / "conversations" / f"{session}.jsonl"
