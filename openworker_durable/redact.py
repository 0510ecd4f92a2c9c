"""What may be said about arguments outside the call itself: a short, redacted preview (G10).

Values under secret-sounding keys, bodies, and anything that looks like a credential are
left out, at any depth. Pure: no I/O.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SECRET_KEY = re.compile(
    r"token|secret|passw|pwd|api_?key|access_?key|private_?key|auth|cookie|credential|bearer"
    r"|session_?id|signature|^raw$|^_raw$|headers?$",
    re.IGNORECASE,
)
_BODY_KEY = re.compile(
    r"(^|_)(body|content|contents|html|text|message|data|payload|patch|diff|markdown|command"
    r"|script|code|prompt|note|notes|description)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN|\bBearer\s+\S|\bBasic\s+[A-Za-z0-9+/=]{8}|\b(sk|pk|ghp|gho|ghs|xox[abp]|AKIA|ya29)"
    r"[-_A-Za-z0-9.]{8,}|\beyJ[A-Za-z0-9_-]{10,}\.|://[^/\s:@]+:[^/\s@]+@"
    r"|[?&](token|key|sig|signature|code|access_token)=",
    re.IGNORECASE,
)
_LONG_BLOB = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
_MAX_VALUE = 60
_MAX_PREVIEW = 240


def _value(key: str, value: Any, depth: int) -> str:
    if _SECRET_KEY.search(key):
        return "[redacted]"
    if isinstance(value, (dict, list, tuple)):
        return _nested(value, depth)
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    text = " ".join(str(value).split())
    if _BODY_KEY.search(key):
        return f"[{len(text)} characters]"
    if _SECRET_VALUE.search(text) or _LONG_BLOB.search(text):
        return "[redacted]"
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _nested(value: Any, depth: int) -> str:
    if depth >= 3:
        return "[…]"
    if isinstance(value, dict):
        inner = [f"{k}: {_value(str(k), v, depth + 1)}" for k, v in list(value.items())[:6]]
        return "{" + ", ".join(inner) + "}"
    return "[" + ", ".join(_value("", v, depth + 1) for v in list(value)[:6]) + "]"


def preview(arguments: Any) -> str:
    """Return one line about a call's arguments that holds no secret and no body.

    Args:
        arguments: the call's argument object; anything else gives an empty line.

    Returns:
        at most 240 characters, `key: value` pairs parted by a middle dot.
    """
    if not isinstance(arguments, dict):
        return ""
    parts = [f"{k}: {_value(str(k), v, 0)}" for k, v in arguments.items()]
    line = " · ".join(parts)
    return line if len(line) <= _MAX_PREVIEW else line[: _MAX_PREVIEW - 1] + "…"
