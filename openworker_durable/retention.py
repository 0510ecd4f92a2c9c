"""How long what is settled is kept. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """How long what is settled, and safe in its thread, is kept. Open rows never expire.

    Args:
        snapshot_days: days after which a stored result is dropped.
        row_days: days after which the row itself is dropped.
    """

    snapshot_days: float = 30
    row_days: float = 400


KEEP = Retention()
"""What applies when nothing else is said."""
