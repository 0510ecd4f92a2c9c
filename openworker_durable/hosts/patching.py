"""Replacing methods of a class and putting them back exactly as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_ABSENT = object()
Wrapper = Callable[..., Any]


class Patches:
    """The replacements one attachment made, in order."""

    def __init__(self) -> None:
        self._done: list[tuple[type, str, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def wrap(self, cls: type, method: str, make: Callable[[Callable[..., Any]], Wrapper]) -> None:
        """Replace a method by what `make` builds around it.

        Args:
            make: gets the present method, returns the new one.
        """
        before = getattr(cls, method)
        own = cls.__dict__.get(method, _ABSENT)
        after: Any = functools.wraps(before)(make(before))
        after.__durable__ = True  # marks our methods
        self._done.append((cls, method, own))
        setattr(cls, method, after)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Have something else put back together with the methods."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put every method back, last one first; inherited ones are inherited again."""
        while self._undo:
            self._undo.pop()()
        while self._done:
            cls, method, own = self._done.pop()
            if own is _ABSENT:
                delattr(cls, method)
            else:
                setattr(cls, method, own)
