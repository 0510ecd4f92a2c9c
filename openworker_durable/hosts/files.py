"""Writing a host's files in one step, and mending what a crash left torn.

A write goes to a temporary file beside the target, is synced, and renamed over it, so that a
kill leaves the old content or the new. Bytes that cannot be read are kept aside, never dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_TAIL = 64 * 1024


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's content in one step.

    Raises:
        OSError: the old content still stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; only POSIX systems can and need to."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_file(path: Path) -> None:
    """Make what was appended to a file durable; a missing file is none of our business.

    Raises:
        OSError: it may not be durable.
    """
    if not path.exists():
        return
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_thread(path: Path, messages: list[dict[str, Any]]) -> None:
    """Write a whole conversation, one message a line, in one step."""
    write_atomic(path, "".join(json.dumps(m) + "\n" for m in messages))


def set_aside(path: Path, content: bytes) -> Path:
    """Keep unreadable bytes in a file beside the one they came from; return its path."""
    aside = path.with_name(f"{path.name}.unreadable-{int(time.time())}-{os.getpid()}")
    aside.write_bytes(content)
    return aside


def mend_thread(path: Path) -> Path | None:
    """Cut a torn last line off a conversation, keeping its bytes aside.

    Returns:
        where the bytes were kept, or None when the file was whole or is not there.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return None
    if size == 0:
        return None
    with open(path, "rb") as file:
        file.seek(max(0, size - 1))
        ended = file.read() == b"\n"
    keep = _whole_length(path, size)
    if keep == size:
        if not ended:
            with open(path, "ab") as file:
                file.write(b"\n")
        return None
    content = path.read_bytes()
    aside = set_aside(path, content[keep:])
    with open(path, "r+b") as file:
        file.truncate(keep)
    return aside


def _whole_length(path: Path, size: int) -> int:
    """Return how many leading bytes are whole lines of JSON, looking at the last one only."""
    with open(path, "rb") as file:
        window = min(size, _TAIL)
        while True:
            file.seek(size - window)
            tail = file.read(window)
            start = tail.rstrip(b"\n").rfind(b"\n") + 1
            if start > 0 or window == size:
                break
            window = min(size, window * 4)
    line = tail[start:].strip()
    if not line or _is_json(line):
        return size
    return size - window + start


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, UnicodeDecodeError):
        return False
    return True


def read_json_tolerant(path: Path) -> Any:
    """Read a JSON file; an unreadable one is kept aside and read as None."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, UnicodeDecodeError):
        set_aside(path, content)
        return None
