"""Files as they were before a call, as it would leave them, and as they are now.

What is kept is digests and paths. A file counts as written only when it holds exactly what the
call would have left, and as untouched only when it holds exactly what it held before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..reconciler import Call

LARGEST = 16 * 1024 * 1024
"""Most bytes of a file that is looked at."""

ABSENT = "absent"
"""Stands for the digest of a file that is not there."""


class NotKnown(Exception):
    """A call whose effect on the disk cannot be told beforehand."""


@dataclass(frozen=True)
class Change:
    """What a call does to one file.

    Args:
        path: the file, absolute.
        before, after: digests of what it holds, or `ABSENT`.
    """

    path: str
    before: str
    after: str


class Now(str, Enum):
    """How a file is now, compared with a change."""

    AFTER = "after"
    BEFORE = "before"
    NEITHER = "neither"


def place(call: Call, path: Any) -> Path:
    """Return the file that a path of a call names.

    Raises:
        NotKnown: a relative path where the session has no folder, or no path at all.
    """
    if not isinstance(path, str) or not path:
        raise NotKnown("no path")
    found = Path(path).expanduser()
    if found.is_absolute():
        return found.resolve()
    if call.workspace is None:
        raise NotKnown("no folder")
    return (call.workspace / found).resolve()


def shown(call: Call, file: Path) -> str:
    """Return a file's path as the host's tools return it: relative to the session's folder."""
    try:
        if call.workspace is not None:
            return file.relative_to(call.workspace.resolve()).as_posix()
    except ValueError:
        pass
    return str(file)


def content(file: Path) -> bytes | None:
    """Return what a file holds; None when it is not there.

    Raises:
        NotKnown: it is no file, too large, or cannot be read.
    """
    try:
        if not file.exists():
            return None
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise NotKnown("no file, or too large")
        return file.read_bytes()
    except OSError as exc:
        raise NotKnown("cannot be read") from exc


def text_of(data: bytes | None) -> str:
    """Return a file's text as Python reads it in text mode.

    Raises:
        NotKnown: there is none, or it is no UTF-8.
    """
    if data is None:
        raise NotKnown("no such file")
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as exc:
        raise NotKnown("no UTF-8") from exc


def written(text: str) -> bytes:
    """Return what Python puts into a file for a text, in text mode.

    Raises:
        NotKnown: it cannot be encoded, or is too large.
    """
    try:
        data = text.replace("\n", os.linesep).encode("utf-8")
    except UnicodeEncodeError as exc:
        raise NotKnown("no UTF-8") from exc
    if len(data) > LARGEST:
        raise NotKnown("too large")
    return data


def digest(data: bytes | None) -> str:
    """Return the digest of what a file holds."""
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()


def compare(change: Change) -> Now:
    """Say how a file is now.

    Raises:
        NotKnown: it cannot be read.
    """
    now = digest(content(Path(change.path)))
    if now == change.after:
        return Now.AFTER
    return Now.BEFORE if now == change.before else Now.NEITHER


def note(changes: Iterable[Change], result: Any) -> str:
    """Return the text that is kept with the attempt."""
    files = [[c.path, c.before, c.after] for c in changes]
    return json.dumps({"files": files, "result": result}, separators=(",", ":"))


def read_note(prepared: str) -> tuple[list[Change], Any]:
    """Read what `note` wrote; no changes for anything else."""
    try:
        kept = json.loads(prepared)
        return [Change(*map(str, c)) for c in kept["files"]], kept["result"]
    except (ValueError, KeyError, TypeError):
        return [], None


Plan = Callable[[Call, Mapping[str, Any]], tuple[list[Change], Any]]
"""Works out, before a call, what it changes and what it returns; raises `NotKnown`."""
