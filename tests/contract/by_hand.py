"""Short ways to give evidence by hand in tests, and to see what it left."""

from __future__ import annotations

from typing import Any

from openworker_durable.config import settings_from
from openworker_durable.evidence import submit
from openworker_durable.ledger import Ledger
from openworker_durable.models import Intent
from tests.contract.kit import audits, row_of, table

CANARY = "canary-s3cr3t"

SETTINGS = settings_from(
    b'[sources.ops]\ntools = ["pay"]\n[sources.bank]\ntools = ["pay", "mcp:bank/pay"]\n'
    b'[sources.mail]\ntools = ["send"]\n'
)
NUMBERED = {"type": "object", "required": ["number"]}


async def give(ledger: Ledger, what: Intent, result: Any = "paid", **more: Any) -> bool:
    """Give evidence about the first attempt, as `ops` and with event `e1` unless told otherwise."""
    said: dict[str, Any] = {
        "execution_id": what.execution_id, "attempt": 1, "source": "ops", "event": "e1",
        "settings": SETTINGS, "result": result, "clock": lambda: 7.0, **more,
    }  # fmt: skip
    return await submit(ledger, **said)


async def give_error(
    ledger: Ledger, what: Intent, error: Any, event: str = "e1", **more: Any
) -> bool:
    return await submit(
        ledger, execution_id=what.execution_id, attempt=1, source="ops", event=event,
        settings=SETTINGS, error=error, **more,
    )  # fmt: skip


def unchanged(ledger: Ledger, what: Intent) -> bool:
    """Say whether an unknown attempt is as `in_state` left it."""
    row = row_of(ledger, what)
    stages = [a["stage"] for a in audits(ledger.path)]
    return row.undecided and stages == ["dispatched", "outcome"] and not said(ledger)


def said(ledger: Ledger) -> list[Any]:
    return table(ledger.path, "execution_evidence")
