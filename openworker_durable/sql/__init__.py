"""The SQL of this package, loaded once: named statements from the .sql files beside this."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from importlib import resources
from typing import Any

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load(file: str) -> dict[str, str]:
    """Return the named parts of one .sql file of this package, in the file's order."""
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    pieces = _NAME.split(text)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


SCHEMA = load("schema.sql")

RESULT_COLUMN = "snapshot"
"""The one column that holds results; only the statement that asks for one reads it."""


_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_COLUMN = re.compile(
    r"^ {4}(\w+) +((?:TEXT|INTEGER|REAL|BLOB)\b(?:[^,(\n]|\([^)]*\))*)", re.MULTILINE
)


def columns_of(statement: str) -> tuple[str, dict[str, str]]:
    """Return the table that a statement creates, and what it says of each of its columns.

    Returns:
        an empty name for a statement that creates none.
    """
    made = _TABLE.match(statement)
    if made is None:
        return "", {}
    return made[1], {name: kind.strip() for name, kind in _COLUMN.findall(statement)}


def _columns() -> str:
    """Return the columns of an execution's row without its result, as the schema names them."""
    tables = dict(columns_of(s.strip()) for s in SCHEMA["tables"].split(";"))
    return ", ".join(n for n in tables["tool_executions"] if n != RESULT_COLUMN)


QUERIES = {k: v.replace("@columns@", _columns()) for k, v in load("queries.sql").items()}


def clean(value: Any) -> Any:
    """Return a text as SQLite can store it: lone surrogates become visible escapes."""
    if not isinstance(value, str):
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def run(conn: sqlite3.Connection, name: str, params: Mapping[str, Any]) -> sqlite3.Cursor:
    """Run one named statement with cleaned parameters."""
    return conn.execute(QUERIES[name], {k: clean(v) for k, v in params.items()})
