"""The SQL of this package, loaded once: named statements from the .sql files beside this."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load(file: str) -> dict[str, str]:
    """Return the named parts of one .sql file of this package, in the file's order."""
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    pieces = _NAME.split(text)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


QUERIES = load("queries.sql")
SCHEMA = load("schema.sql")
