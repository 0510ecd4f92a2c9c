"""Numbers of a bench run: medians, pairs, and the table and JSON they end up in."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

_GOALS = {"at_most": "<=", "at_least": ">=", "exactly": "="}


def _meets(word: str, value: float, goal: float) -> bool:
    if word == "exactly":
        return value == goal
    return value <= goal if word == "at_most" else value >= goal


@dataclass
class Figure:
    """One line of the result.

    Args:
        name: its key in the JSON.
        value: the figure; None when it could not be taken here.
        unit: `us`, `ms`, `ratio`, `count` or `per_s`.
        goal: what it is to be, in words.
        ok: whether it is; None where no goal is set.
        note: how it was taken, or what it is made of.
    """

    name: str
    value: float | None
    unit: str
    goal: str = ""
    ok: bool | None = None
    note: str = ""


@dataclass
class Result:
    """All figures of one run and the machine they were taken on."""

    folder: Path
    figures: list[Figure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = machine(self.folder)

    def add(self, name: str, value: float | None, unit: str, **more: Any) -> None:
        """Add a figure; `at_most`, `at_least` or `exactly` is its goal, `note` how it was taken."""
        goal, ok = "", None
        for word, sign in _GOALS.items():
            if word in more:
                goal = f"{sign} {more[word]}"
                ok = None if value is None else _meets(word, value, more[word])
        self.figures.append(Figure(name, value, unit, goal, ok, str(more.get("note", ""))))

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "machine": self.machine,
            "ratios": {f.name: f.value for f in self.figures if f.unit == "ratio"},
            "figures": [vars(f) for f in self.figures],
        }

    def table(self) -> str:
        """Return everything as a table for people."""
        lines = [f"{k}: {v}" for k, v in self.machine.items()]
        lines.append("")
        for f in self.figures:
            value = "not counted" if f.value is None else f"{f.value:.2f}"
            mark = {True: "ok", False: "OVER", None: ""}[f.ok]
            lines.append(
                f"{f.name:44} {value:>12} {f.unit:6} {f.goal:8} {mark:4} {f.note}".rstrip()
            )
        return "\n".join(lines)


def machine(folder: Path) -> dict[str, Any]:
    """Describe what the figures depend on."""
    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "folder": str(folder),
        "file_system": _file_system(folder),
    }


def _file_system(folder: Path) -> str:
    """Return the type of the file system a folder lies on, as Linux tells it."""
    best, kind = "", "?"
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return kind
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, place, fs, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) > len(best):
            best, kind = place, fs
    return kind


def clocked(work: Callable[[], object]) -> float:
    """Return how many seconds `work` took."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@dataclass
class Pairs:
    """Times of two ways of doing the same, taken in turns."""

    one: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return the median of one over the median of the other."""
        return statistics.median(self.one) / statistics.median(self.other)

    @property
    def difference(self) -> float:
        """Return the median of the differences, pair by pair."""
        return statistics.median(a - b for a, b in zip(self.one, self.other, strict=True))

    @property
    def medians(self) -> str:
        """Return both medians in milliseconds, for a note."""
        one, other = statistics.median(self.one), statistics.median(self.other)
        return f"{one * 1e3:.3f} ms against {other * 1e3:.3f} ms"


def in_turns(one: Callable[[int], object], other: Callable[[int], object], count: int) -> Pairs:
    """Time two ways pair by pair; which of them goes first changes from pair to pair."""
    pairs = Pairs()
    for n in range(count):
        if n % 2:
            pairs.one.append(clocked(partial(one, n)))
            pairs.other.append(clocked(partial(other, n)))
        else:
            pairs.other.append(clocked(partial(other, n)))
            pairs.one.append(clocked(partial(one, n)))
    return pairs


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
