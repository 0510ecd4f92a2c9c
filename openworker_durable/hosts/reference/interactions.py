"""Buttons in a chat: what they say, and what their value means."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .inbox import KIND_APPROVAL, KIND_QUESTION

_ITEM, _RESOLUTION = "id", "r"


@dataclass
class Button:
    """One button; the chat gives its value back."""

    label: str
    value: str


def encode(item_id: str, resolution: str) -> str:
    """Return the value of a button that resolves an item."""
    fields = {_ITEM: item_id, _RESOLUTION: resolution}
    return json.dumps(fields, separators=(",", ":"))


def decode(value: str) -> tuple[str, str] | None:
    """Return (item id, resolution) of a button's value, or None when it is not ours."""
    try:
        fields = json.loads(value)
    except ValueError:
        fields = None
    item_id = fields.get(_ITEM) if isinstance(fields, dict) else None
    return (str(item_id), str(fields.get(_RESOLUTION, ""))) if item_id else None


def buttons_for(item: Any) -> list[Button]:
    """Return an item's buttons; none for what has no few choices."""
    if item.kind == KIND_APPROVAL:
        choices = {"Approve": "allow", "Deny": "deny"}
    elif item.kind == KIND_QUESTION and not item.questions:
        choices = {str(option): str(option) for option in item.options}
    else:
        choices = {}
    return [Button(label, encode(item.id, word)) for label, word in choices.items()]
