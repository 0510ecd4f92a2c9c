"""The demonstration's table, for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .demo_rows import Row, Seen

PLACES = {
    "after_approval": "allowed, not called yet",
    "in_tool_before_effect": "in the tool, before it",
    "in_tool_after_effect": "in the tool, after it",
    "tool_returned": "returned, in memory",
    "result_in_thread": "in the thread, unsaved",
    "after_save": "saved",
}
RECOVERY = {
    "rebuilt": "result rebuilt",
    "recovery_required": "a person is asked",
    "executed_once": "executed once",
    "nothing_to_do": "nothing to do",
    "executed_again": "EXECUTED AGAIN",
    "nothing_done": "NOTHING DONE",
}
ALLOWED_BY = {"prompt": "A person allows the call", "grant": "A session grant allows it"}


def show(rows: list[Row], keep: Path | None) -> None:
    """Print the table and what it comes to."""
    console = Console(highlight=False)
    console.print(_table(rows))
    console.print(f"Host alone: {_sum([r.alone for r in rows])}.")
    console.print(f"With the plugin: {_sum([r.durable for r in rows])}.")
    for row in rows:
        for fault in row.durable.faults:
            console.print(f"{row.durable.crash_point}: {fault}", style="red", markup=False)
    if keep is not None:
        console.print(
            f"Kept. Try: openworker-durable list --state {keep}", soft_wrap=True, markup=False
        )


def _table(rows: list[Row]) -> Table:
    table = Table(title="One mail is to be sent; the process is killed, then started again")
    for name in ("killed", "effects\nalone", "effects\ndurable", "what recovery did", "ok"):
        table.add_column(name, no_wrap=name == "killed")
    allowed_by = ""
    for row in rows:
        if row.durable.authorised_by != allowed_by:
            allowed_by = row.durable.authorised_by
            table.add_section()
            table.add_row(f"[bold]{ALLOWED_BY[allowed_by]}[/]")
        table.add_row(
            PLACES[row.durable.crash_point], _alone(row.alone), str(row.durable.effects),
            RECOVERY[row.durable.recovery], "[green]yes[/]" if row.ok else "[bold red]NO[/]",
        )  # fmt: skip
    return table


def _alone(seen: Seen) -> str:
    style = {"repeated": "[bold red]", "forgotten": "[yellow]"}.get(seen.verdict, "")
    text = f"{seen.effects}, {seen.verdict}" if seen.verdict else str(seen.effects)
    return f"{style}{text}[/]" if style else text


def _sum(side: list[Seen]) -> str:
    repeated = sum(s.verdict == "repeated" for s in side)
    forgotten = sum(s.verdict == "forgotten" for s in side)
    if not repeated and not forgotten:
        asked = sum(s.asked for s in side)
        return f"nothing repeated, nothing forgotten; a person is asked {asked} times"
    return (
        f"the mail was repeated at {repeated} of {len(side)} points, and at {forgotten} the "
        "conversation has no trace of the call"
    )
