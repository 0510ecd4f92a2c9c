"""Writing a host's files in one step, and mending what a crash left torn.

A write goes to a temporary file beside the target and is renamed over it, so that a kill leaves
the old content or the new. Bytes that cannot be read are kept aside, never dropped: in a file
named after their digest, so that the same bytes are kept once, however often they are met.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

_BOM = b"\xef\xbb\xbf"
_PADDING = b"\0 \t\r"


def write_atomic(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Replace a file's content in one step; its mode stays.

    Args:
        sync: whether it is to survive a power loss, too; a kill it survives anyway.

    Raises:
        OSError: the old content still stands.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        with contextlib.suppress(OSError):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if sync:
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
    digest = hashlib.sha256(content).hexdigest()[:16]
    aside = path.with_name(f"{path.name}.unreadable-{digest}")
    if not aside.exists():
        write_atomic(aside, content)
        with contextlib.suppress(OSError):
            shutil.copymode(path, aside)
    return aside


def mend_thread(path: Path) -> Path | None:
    """Make a conversation readable again, keeping the bytes that are no message aside.

    Cut off are a torn last line, lines torn in the middle, and what a power loss fills with
    NULs; a whole message glued to such bytes is kept. A file that is whole is not touched. The
    bytes are aside before the file is replaced, so that a kill in between loses nothing.

    Returns:
        where the bytes were kept, or None when the file was whole or is not there.

    Raises:
        OSError: the file is there and cannot be read or replaced; it stands as it was.
    """
    if not path.exists():
        return None
    content = path.read_bytes()
    good: list[bytes] = []
    bad: list[bytes] = []
    for line in content.split(b"\n"):
        message = _message_in(line)
        if message is not None:
            good.append(message)
        if line.strip() and message is not line:
            bad.append(line)
    if not bad:
        if content and not content.endswith(b"\n"):
            with open(path, "ab") as file:
                file.write(b"\n")
        return None
    aside = set_aside(path, b"\n".join(bad))
    write_atomic(path, b"".join(m + b"\n" for m in good))
    return aside


def _message_in(line: bytes) -> bytes | None:
    """Return the message a line holds: the very line when it is nothing else, None for none."""
    if _is_message(line):
        return line
    if (value := _object(line)) is not None:
        # Written with a separator in a text that the host takes for the end of a line.
        return json.dumps(value).encode()
    rest = line.removeprefix(_BOM).strip(_PADDING)
    if _is_message(rest):
        return rest
    # Torn, and the host's next line glued to it: the last one may be whole.
    start = rest.rfind(b'{"role"')
    return rest[start:] if start > 0 and _is_message(rest[start:]) else None


def _is_message(line: bytes) -> bool:
    """Say whether the host can read a line as one message."""
    return _object(line) is not None and len(line.decode("utf-8").splitlines()) == 1


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_json_tolerant(path: Path) -> Any:
    """Read a JSON file; an unreadable one is kept aside and read as None."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        set_aside(path, content)
        return None


def whole_items(content: bytes) -> tuple[list[Any], bool]:
    """Return the items of an inbox file, and whether the file is whole.

    Of a file that was torn, the items before the first torn one are returned.
    """
    try:
        value = json.loads(content.decode("utf-8"))
        items = value.get("items", []) if isinstance(value, dict) else None
        return (items, True) if isinstance(items, list) else ([], False)
    except (ValueError, RecursionError):
        return _items_before_tear(content.decode("utf-8", "replace")), False


def _items_before_tear(text: str) -> list[Any]:
    decoder, items = json.JSONDecoder(), []
    _head, _, rest = text.partition("[")
    with contextlib.suppress(ValueError, RecursionError):
        while rest:
            item, end = decoder.raw_decode(rest := rest.lstrip(" \t\r\n,"))
            items.append(item)
            rest = rest[end:]
    return items
