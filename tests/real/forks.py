"""A process that has imported the real host once and forks a life of it for each order.

Orders come as JSON lines on standard input: `start` forks a child that runs one coroutine of a
test module and may kill itself; `kill` kills one; `wait` says how one ended. POSIX only, as all
tests that kill are.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

LONGEST = 60
"""Seconds after which a life that hangs is ended by its own alarm."""


def _report(folder: Path, number: int, **values: Any) -> None:
    path = folder / f"report{number}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values))
    part.rename(path)


def _live(order: dict[str, Any]) -> None:
    """Be one process of the host, to its end; never returns."""
    from tests.real.life import Life

    folder = Path(order["folder"])
    log = os.open(folder / f"log{order['number']}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(LONGEST - 5)
    signal.alarm(LONGEST)
    os.environ["HOME"] = str(folder)
    code = 0
    try:
        function = getattr(importlib.import_module(order["module"]), order["function"])
        life = Life(folder, durable=order["durable"])
        value = asyncio.run(function(life, **order["kwargs"]))
        _report(folder, order["number"], value=value)
    except BaseException:
        code = 1
        _report(folder, order["number"], error=traceback.format_exc())
    os._exit(code)


def _start(order: dict[str, Any]) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        _live(order)
    return {"pid": pid}


def _wait(order: dict[str, Any]) -> dict[str, Any]:
    _pid, status = os.waitpid(order["pid"], 0)
    return {"code": os.waitstatus_to_exitcode(status)}


def _kill(order: dict[str, Any]) -> dict[str, Any]:
    os.kill(order["pid"], signal.SIGKILL)
    return {}


def main() -> None:
    """Import the host, say so, and serve until standard input ends."""
    importlib.import_module("coworker.server.manager")
    importlib.import_module("tests.real.life")
    out = os.fdopen(os.dup(1), "w", buffering=1)
    out.write("ready\n")
    verbs = {"start": _start, "wait": _wait, "kill": _kill}
    for line in sys.stdin:
        order = json.loads(line)
        out.write(json.dumps(verbs[order["verb"]](order)) + "\n")


if __name__ == "__main__":
    main()
