"""What may be said about arguments outside the call itself: a short, redacted preview (G10).

Values under secret-sounding keys, bodies, and anything that looks like a credential are
left out, at any depth; of an address only its host and path remain. Pure: no I/O.
"""

from __future__ import annotations

import json
import re
from typing import Any

_WORDS = (
    r"token|secret|passw|passphrase|pwd|apikey|accesskey|privatekey|authoriz|oauth|cookie"
    r"|credential|bearer|sessionid|signature|headers?$|^raw$|^auth$|authkey|pin$|otp"
)
_SECRET_KEY = re.compile(_WORDS, re.IGNORECASE)
_BODY_KEY = re.compile(
    r"(^|_)(body|content|contents|html|text|message|data|payload|patch|diff|markdown|command"
    r"|script|code|prompt|note|notes|description|raw)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN|\bBearer\s+\S|\bBasic\s+[A-Za-z0-9+/=]{8}"
    r"|\b(sk|pk|ghp|gho|ghs|xox[abp]|AKIA|ya29)[-_A-Za-z0-9.]{8,}|\beyJ[A-Za-z0-9_-]{10,}\.",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"(token|secret|passw\w*|pwd|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|authorization"
    r"|cookie|credential\w*|session[-_ ]?id|\bsid|signature|\bsig|\bauth)\b[\"']?\s*[:=]",
    re.IGNORECASE,
)
_LONG_BLOB = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[^/\s@]*@)?([^\s?#]*)[^\s]*", re.IGNORECASE)
_MAX_KEY = 40
_MAX_VALUE = 60
_MAX_PREVIEW = 240
_MAX_DEPTH = 3


def _plain(key: str) -> str:
    """Return a key without the signs that part its words."""
    return re.sub(r"[^A-Za-z0-9]", "", key)


def _text(text: str) -> str:
    """Return a short text, with addresses cut to host and path, or a note in its place."""
    text = _ADDRESS.sub(r"\1\2", " ".join(text.split()))
    if _SECRET_VALUE.search(text) or _ASSIGNED.search(text) or _LONG_BLOB.search(text):
        return "[redacted]"
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _size(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return f"[{len(value)} parts]"
    return f"[{len(str(value))} characters]"


def _value(key: str, value: Any, depth: int) -> str:
    if _SECRET_KEY.search(_plain(key)):
        return "[redacted]"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if _BODY_KEY.search(key):
        return _size(value)
    if isinstance(value, (dict, list, tuple)):
        return _nested(value, depth)
    return _text(str(value))


def _nested(value: Any, depth: int) -> str:
    if depth >= _MAX_DEPTH:
        return "[…]"
    if isinstance(value, dict):
        return "{" + ", ".join(_pairs(list(value.items())[:6], depth + 1)) + "}"
    return "[" + ", ".join(_value("", v, depth + 1) for v in list(value)[:6]) + "]"


def _pairs(items: list[tuple[Any, Any]], depth: int) -> list[str]:
    out = []
    for key, value in items:
        name = _text(str(key))[:_MAX_KEY]
        out.append(f"{name}: {_value(str(key), value, depth)}")
    return out


def short(line: str) -> str:
    """Return a short line of somebody else's with what looks like a secret left out."""
    return _text(str(line))


def preview(arguments: Any) -> str:
    """Return one line about a call's arguments that holds no secret and no body.

    Args:
        arguments: the call's argument object; anything else gives an empty line.

    Returns:
        at most 240 characters, `key: value` pairs parted by a middle dot; never raises.
    """
    if not isinstance(arguments, dict):
        return ""
    try:
        line = " · ".join(_pairs(list(arguments.items()), 0))
    except Exception:
        return "[arguments cannot be shown]"
    line = line.encode("utf-8", "replace").decode("utf-8")
    return line if len(line) <= _MAX_PREVIEW else line[: _MAX_PREVIEW - 1] + "…"
