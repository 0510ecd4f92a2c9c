"""Programs that can be installed for the person: here, files in a folder."""

from __future__ import annotations

from pathlib import Path

MANAGED: dict[str, str] = {"scanner": "1.0", "linter": "2.1"}
folder = Path(".coworker-tools")
"""Where programs go; whoever runs the host sets it."""


def describe(name: str) -> dict[str, str] | None:
    """Return what a card shows of a program, or None when it is not in the catalogue."""
    version = MANAGED.get(name)
    return None if version is None else {"name": name, "version": version}


def install(name: str, *, timeout: int = 120) -> str:
    """Install a program and return its path; a second installation is seen in the log beside it."""
    if name not in MANAGED:
        raise KeyError(name)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "installed.log", "a", encoding="utf-8") as log:
        log.write(f"{name}\n")
    path = folder / name
    path.write_text(MANAGED[name], encoding="utf-8")
    return str(path)
