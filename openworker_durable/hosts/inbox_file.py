"""The inbox file: written in one step, read as far as it can be read.

A write survives a kill. It is not synced each time, which would cost two syncs for every
approved call; a thread syncs the file within `SYNC_SECONDS`. The price of a power loss in that
time is at most an extra question: an answer that is lost is asked for again, and an approval
authorises only what the ledger has not seen dispatched.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from .files import set_aside, sync_file, whole_items, write_atomic

SYNC_SECONDS = 0.5
"""How long after a write the file is synced, at the latest."""

_SHAPES: dict[str, type] = {
    "id": str, "session_id": str, "kind": str, "title": str, "body": str, "state": str,
    "created_at": str, "data": dict, "options": list, "questions": list,
}  # fmt: skip
_syncing: set[Path] = set()
_lock = threading.Lock()


def write(path: Path, items: Iterable[Any]) -> None:
    """Replace the file; items are written as the host writes them.

    Raises:
        OSError: the old content still stands.
    """
    text = json.dumps({"items": [vars(i) for i in items]}, separators=(",", ":"))
    try:
        write_atomic(path, text, sync=False)
    except PermissionError:
        # Windows lets nobody rename over a file that another program reads: as the host does.
        path.write_text(text, encoding="utf-8")
    _sync_soon(path)


def _sync_soon(path: Path) -> None:
    with _lock:
        if path in _syncing:
            return
        _syncing.add(path)
    timer = threading.Timer(SYNC_SECONDS, _sync, (path,))
    timer.daemon = True
    timer.start()


def _sync(path: Path) -> None:
    with _lock:
        _syncing.discard(path)
    with contextlib.suppress(OSError):
        sync_file(path)


def read(path: Path, make: Any) -> dict[str, Any]:
    """Return the items of the file by id; what is not all readable is kept aside as a whole.

    Args:
        make: the host's class of items, a dataclass; fields it does not know are left out.

    Raises:
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    found, whole = whole_items(content)
    items: dict[str, Any] = {}
    known = {f.name for f in fields(make)}
    for raw in found:
        item = _item(raw, known, make)
        whole = whole and item is not None and item.id not in items and set(raw) <= known
        # The same id twice: an answer that was given stands, else the later one.
        if item is not None and getattr(items.get(item.id), "state", "") != "resolved":
            items[item.id] = item
    if not whole:
        set_aside(path, content)
    return items


def _item(raw: Any, known: set[str], make: Callable[..., Any]) -> Any:
    if not isinstance(raw, dict):
        return None
    if any(name in raw and not isinstance(raw[name], kind) for name, kind in _SHAPES.items()):
        return None
    try:
        return make(**{k: v for k, v in raw.items() if k in known})
    except TypeError:
        return None
