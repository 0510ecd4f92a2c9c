"""Encoding of results: the exact text the model sees, always, whatever a tool returns.

`encode` never raises: what JSON cannot hold (a cycle, a key that is no text, an object whose
`__str__` fails, text beyond the limit) is stored as a readable stand-in and flagged `lossy`.
The live turn then shows the same stand-in, so that live and rebuilt text are equal (G2, C11).
Pure: no I/O.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 32 * 1024 * 1024
"""Characters of result text that are kept; longer text is cut, with a note, and flagged."""

_MAX_DEPTH = 60


@dataclass(frozen=True)
class Snapshot:
    """What the model and the person saw of one result.

    Args:
        text: content of the tool message.
        display: JSON of the display-only sidecar, or None.
        lossy: True when `text` or `display` is a stand-in for something not encodable.
        native: True when the host, encoding the same object, gets exactly `text`.
    """

    text: str
    display: str | None = None
    lossy: bool = False
    native: bool = True

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the text, 64 hex digits."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    def pack(self) -> bytes:
        """Return text and sidecar as the one value that the ledger stores."""
        display = (self.display or "").encode("utf-8", "surrogatepass")
        return b"%x\n" % len(display) + display + self.text.encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, stored: bytes, *, lossy: bool = False) -> Snapshot:
        """Return what `pack` made a value of."""
        size, _, rest = stored.partition(b"\n")
        cut = int(size, 16)
        display = rest[:cut].decode("utf-8", "surrogatepass") or None
        return cls(rest[cut:].decode("utf-8", "surrogatepass"), display, lossy)

    def display_value(self) -> Any:
        """Return the sidecar as a value, or None."""
        return json.loads(self.display) if self.display else None


class _Tracker:
    """Stands for `default=str` and remembers whether it was needed."""

    used = False

    def __call__(self, value: Any) -> str:
        self.used = True
        return str(value)


def _stand_in(value: Any, depth: int, above: tuple[int, ...]) -> Any:
    """Return a JSON-able likeness of any value; cycles and failures become short notes."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if id(value) in above:
        return "[cycle]"
    if depth >= _MAX_DEPTH:
        return "[too deep]"
    inner = (*above, id(value))
    try:
        if isinstance(value, dict):
            return {str(k): _stand_in(v, depth + 1, inner) for k, v in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_stand_in(v, depth + 1, inner) for v in value]
        return str(value)
    except Exception:
        return f"[unprintable {type(value).__name__}]"


def _lossy_text(value: Any) -> str:
    try:
        return json.dumps(_stand_in(value, 0, ()))
    except Exception:
        return json.dumps(f"[unprintable {type(value).__name__}]")


def _to_text(result: Any) -> tuple[str, bool, bool]:
    """Return (text, lossy, native) the way the host turns a result into text."""
    if type(result) is str:
        return result, False, True
    if isinstance(result, str):
        return str.__str__(result), False, False
    tracker = _Tracker()
    try:
        text = json.dumps(result, default=tracker)
    except Exception:
        return _lossy_text(result), True, False
    return text, False, not tracker.used


def _split_display(result: Any) -> tuple[Any, Any]:
    """Take the display-only key off a dict result, as the host does."""
    if not (isinstance(result, dict) and "_display" in result):
        return result, None
    shown = result["_display"]
    with contextlib.suppress(Exception):  # what has no truth value is no empty display either
        shown = shown or None
    return {k: v for k, v in result.items() if k != "_display"}, shown


def encode(result: Any, *, limit: int = MAX_TEXT) -> Snapshot:
    """Return what the thread shows of `result`; never raises.

    Args:
        result: whatever a tool returned.
        limit: most characters kept.
    """
    body, shown = _split_display(result)
    text, lossy, native = _to_text(body)
    if len(text) > limit:
        text = text[:limit] + f"… [cut: {len(text)} characters, {limit} kept]"
        lossy, native = True, False
    display: str | None = None
    if shown is not None:
        try:
            display = json.dumps(shown)
        except Exception:
            display, lossy, native = _lossy_text(shown), True, False
    return Snapshot(text=text, display=display, lossy=lossy, native=native)
