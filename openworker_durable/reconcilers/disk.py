"""Files as they were before a call, as it would leave them, and as they are now.

What is kept is digests, times and paths. A file counts as written only when it holds exactly what
the call would have left. It counts as untouched only when it holds exactly what it held before and
nobody has written to it since: a file that was written and put back is neither. That a file is
absent counts only in the folder that was there before, so that a disk that is not mounted shows
nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ..reconciler import Call

LARGEST = 16 * 1024 * 1024
"""Most bytes of a file that is looked at."""

MOST_FILES = 20
"""Most files of one call that are looked at."""

ABSENT = "absent"
"""Stands for the digest of a file that is not there."""

REFUSED = "refused"
"""Stands for the digest of a file that the call would refuse to change; no file ever has it."""


class NotKnown(Exception):
    """A call whose effect on the disk cannot be told beforehand."""


@dataclass(frozen=True)
class Change:
    """What a call does to one file.

    Args:
        path: the file, absolute, with no link in it.
        before, after: digests of what it holds, `ABSENT`, or `REFUSED`.
        written_at: when it was last written before the call, nanoseconds; 0 for an absent file.
        up: levels up from the file to the nearest folder that was there before the call.
        folder: number by which the system knows that folder.
    """

    path: str
    before: str
    after: str
    written_at: int = 0
    up: int = 0
    folder: int = 0


class Now(str, Enum):
    """How a file is now, compared with a change."""

    AFTER = "after"
    BEFORE = "before"
    NEITHER = "neither"


# -- names
def place(call: Call, path: Any) -> Path:
    """Return the file that a path of a call names.

    Raises:
        NotKnown: a relative path where the session has no folder, or no path at all.
    """
    if not isinstance(path, str) or not path or "\0" in path:
        raise NotKnown("no path")
    try:
        found = Path(path).expanduser()
        if not found.is_absolute() and call.workspace is None:
            raise NotKnown("no folder")
        return (call.workspace or Path()).joinpath(found).resolve()
    except (OSError, RuntimeError, ValueError) as exc:
        raise NotKnown("no usable path") from exc


def shown(call: Call, file: Path) -> str:
    """Return a file's path as the host's tools return it: relative to the session's folder."""
    try:
        if call.workspace is not None:
            return file.relative_to(call.workspace.resolve()).as_posix()
    except ValueError:
        pass
    return str(file)


# -- contents
def _status(file: Path) -> os.stat_result | None:
    try:
        return os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as exc:
        raise NotKnown("cannot be read") from exc


def content(file: Path) -> bytes | None:
    """Return what a file holds; None when it is not there.

    Raises:
        NotKnown: it is no file, too large, or cannot be read.
    """
    found = _status(file)
    if found is None:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
        raise NotKnown("no file, or too large")
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as exc:
        raise NotKnown("cannot be read") from exc
    if len(data) > LARGEST:
        raise NotKnown("too large")
    return data


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
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()[:40]


# -- before and after
@dataclass
class Draft:
    """The files of one call, changed in thought, one after the other."""

    call: Call
    _before: dict[Path, bytes | None] = field(default_factory=dict)
    _now: dict[Path, bytes | None] = field(default_factory=dict)

    def read(self, file: Path) -> bytes | None:
        """Return what a file would hold at this point of the call; None when it is not there.

        Raises:
            NotKnown: see `content`; or these are too many files.
        """
        if file not in self._before:
            if len(self._before) >= MOST_FILES:
                raise NotKnown("too many files")
            self._before[file] = self._now[file] = content(file)
        return self._now[file]

    def put(self, file: Path, data: bytes | None) -> None:
        """Give a file, read before, another content; None takes it away."""
        self._now[file] = data

    def changes(self) -> list[Change]:
        """Return what came of it, with what is needed to compare with it later."""
        return [
            change_of(file, before, digest(self._now[file]))
            for file, before in self._before.items()
        ]


def change_of(file: Path, before: bytes | None, after: str) -> Change:
    """Return a change of a file as it is now.

    Args:
        file: see `Change`.
        before: what it holds.
        after: digest of what it is to hold.

    Raises:
        NotKnown: it cannot be looked at.
    """
    found = _status(file)
    if (found is None) != (before is None):
        raise NotKnown("it is changing")
    written_at = found.st_mtime_ns if found is not None else 0
    return Change(str(file), digest(before), after, written_at, *_anchor(file))


def _anchor(file: Path) -> tuple[int, int]:
    for up, folder in enumerate(file.parents, 1):
        found = _status(folder)
        if found is not None:
            return up, found.st_ino
    raise NotKnown("no folder")


def compare(change: Change) -> Now:
    """Say how a file is now.

    Raises:
        NotKnown: it cannot be read, or is absent together with its folder.
    """
    file = Path(change.path)
    now = digest(content(file))
    if now == ABSENT and not _same_folder(file, change):
        raise NotKnown("its folder is not there")
    if now == change.after:
        return Now.AFTER
    return Now.BEFORE if now == change.before and _untouched(file, change) else Now.NEITHER


def _same_folder(file: Path, change: Change) -> bool:
    found = _status(file.parents[change.up - 1]) if change.up else None
    return found is not None and found.st_ino == change.folder


def _untouched(file: Path, change: Change) -> bool:
    found = _status(file)
    return (found.st_mtime_ns if found is not None else 0) == change.written_at


# -- what is kept
def note(changes: Iterable[Change], result: Any) -> str:
    """Return the text that is kept with the attempt."""
    files = [[c.path, c.before, c.after, c.written_at, c.up, c.folder] for c in changes]
    return json.dumps({"files": files, "result": result}, separators=(",", ":"))


def read_note(prepared: str) -> tuple[list[Change], Any]:
    """Read what `note` wrote; no changes for anything else."""
    try:
        kept = json.loads(prepared)
        files = [
            Change(str(p), str(b), str(a), *map(int, more)) for p, b, a, *more in kept["files"]
        ]
        return files, kept["result"]
    except (ValueError, KeyError, TypeError):
        return [], None


def _read(path: str, before: str, after: str, *more: int) -> Change:
    return Change(str(path), str(before), str(after), *map(int, more))


Plan = Callable[[Call, Mapping[str, Any]], tuple[list[Change], Any]]
"""Works out, before a call, what it changes and what it returns; raises `NotKnown`."""
