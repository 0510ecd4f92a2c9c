"""A scheduled run cut off in the middle of its call, and caught up after the restart."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from threading import Thread
from typing import Any

import httpx

from .process import Server
from .rounds import recovery

_AHEAD = 3.0  # seconds


@dataclass
class CaughtUp:
    """What stood after the restart: letters sent, and what a person is asked."""

    at_kill: int
    letters: int
    questions: int
    items: int


def play(server: Server, name: str, rng: random.Random) -> CaughtUp:
    """Create a task that is due, approve its call, kill the server, start it again.

    Nothing is answered after the restart, so a second letter was sent without asking.

    Raises:
        RuntimeError: the run did not ask for its call.
    """
    server.start()
    server.configure()
    made = server.post("/v1/automations", _task(name, server))
    if not made["ok"]:
        raise RuntimeError(str(made))
    server.kill(children=True)
    time.sleep(_AHEAD)  # the slot passes while the server is down
    server.start()
    if not _until(lambda: bool(_pending(server)), 20):
        raise RuntimeError("the run asked for nothing")
    item = _pending(server)[0]["id"]
    Thread(target=_answer, args=(server, item), daemon=True).start()
    time.sleep(rng.uniform(0, 0.3))
    server.kill(children=rng.random() < 0.5)
    at_kill = len(server.sent())
    server.start()
    _until(lambda: bool(_pending(server)), 5)
    time.sleep(1)
    pending = _pending(server)
    items = sum(map(recovery, pending))
    return CaughtUp(at_kill, len(server.sent()), len(pending) - items, items)


def _answer(server: Server, item: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        server.resolve(item, "allow")  # the kill may cut it off


def _task(name: str, server: Server) -> dict[str, Any]:
    # A scheduled run has no MCP tools in this host, so its effect is a command's.
    order = f"please append {name} to {server.effects}."
    due = datetime.now(timezone.utc) + timedelta(seconds=_AHEAD)
    fire_at = due.replace(tzinfo=None).isoformat()
    return {"title": name, "instructions": order, "fire_at": fire_at, "timezone": "UTC"}


def _pending(server: Server) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = server.get("/v1/inbox", state="pending")["items"]
    return [item for item in items if "run_shell" in json.dumps(item)]


def _until(holds: Callable[[], bool], bound: float) -> bool:
    until = time.monotonic() + bound
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return False
