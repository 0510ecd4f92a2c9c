"""A stdio MCP server with an outside effect: `send` appends one line to a file.

Run with the effects file as its only argument; its process id is appended to `<file>.pids`.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is started as a file

from tests.waiting import chance

mail = FastMCP("mail")
EFFECTS = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("effects")


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@mail.tool()
def send(to: str, text: str) -> str:
    """Send a letter; the delays make room for a kill before and after the effect."""
    chance(random.uniform(0, 0.12))
    _append(EFFECTS, json.dumps({"to": to, "text": text}))
    chance(random.uniform(0, 0.12))
    return f"delivered:{text}"


@mail.tool()
def look(to: str) -> str:
    """Say how many letters a receiver got; changes nothing."""
    lines = EFFECTS.read_text("utf-8").splitlines() if EFFECTS.exists() else []
    return str(sum(json.loads(line)["to"] == to for line in lines))


if __name__ == "__main__":
    _append(Path(f"{EFFECTS}.pids"), str(os.getpid()))
    mail.run()
