"""Words for what stands in a TOML file: the headers of tables, kinds of values, times. Pure."""

from __future__ import annotations

import math
import re
from typing import Any

from .redact import short

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([smhd])\Z")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def header(*names: str) -> str:
    """Return the header of a table as it stands in the file."""
    return f"[{'.'.join(n if _BARE.match(n) else quoted(n[:100]) for n in names)}]"


def quoted(name: str) -> str:
    """Return a text in quotes, with what cannot stand there replaced."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else "?" for c in name) + '"'


def shown(value: str) -> str:
    """Return a short text in quotes, without what looks like a secret."""
    return quoted(short(value))


def kind_of(value: Any) -> str:
    """Return what a value is, in TOML's words; the value itself is never shown."""
    for kind, word in (
        (bool, "true or false"), (int, "a whole number"), (float, "a number"), (str, "a text"),
        (list, "a list"), (dict, "a table"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return word
    return "a date or time"


def seconds_of(value: float | str) -> float | None:
    """Return the seconds of a number, or of a text such as `24h`; None when it is neither."""
    if isinstance(value, str):
        found = _DURATION.match(value)
        return float(found[1]) * _UNITS[found[2]] if found else None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None
