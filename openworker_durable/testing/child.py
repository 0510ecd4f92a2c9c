"""The child process's entry: plays one scenario and writes one report, or dies and writes none."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import traceback
from pathlib import Path

from .player import Player
from .scenario import Scenario


def main(scenario: Scenario, url: str, report: Path, seconds: float) -> None:
    """Play a scenario.

    Args:
        url: the effect service.
        report: the file to write at the end.
        seconds: after these, the stacks of all threads are written beside the report.
    """
    with open(trace_of(report), "w", encoding="utf-8") as trace:
        faulthandler.dump_traceback_later(seconds, file=trace)
        player = Player(scenario, url, report)
        error = ""
        try:
            player.places.count_calls()
            asyncio.run(player.play())
        except Exception:
            error = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
    _write(report, json.dumps(player.report(error)))


def trace_of(report: Path) -> Path:
    """Return the file for the stacks of a process that hangs."""
    return report.with_suffix(".trace")


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
