"""The command line: looks into a record and says what is there. Thin over the library.

Every command but `run`, `wrapper` and `demo` only reads, and leaves nothing in the state folder.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import __version__, cli_doctor, cli_read, cli_words
from .cli_read import EXITS, Stop
from .models import Execution
from .states import State

app = typer.Typer(
    name="openworker-durable",
    help="Look into the record of protected tool calls of an OpenWorker state folder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback with local variables would show their values
)

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        readable=False,  # whether it can be read is told in our own words
        help="OpenWorker's state folder; the usual one, or $COWORKER_STATE_DIR, when not given.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="An execution id, or how it begins.")]


def main() -> None:
    """Run the command line; never fails on what a terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["run"] and sys.argv[2:3] not in ([], ["--help"]):
        _run_here(sys.argv[2:])
    else:
        app()


def _run_here(command: list[str]) -> None:
    """Run the command under no parser: its arguments, errors and end are its own."""
    from .launch import run

    run(command)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


@contextmanager
def _stopping(as_json: bool) -> Iterator[None]:
    """End a command that cannot go on: the sentence on stderr, and as JSON when asked."""
    try:
        yield
    except Stop as stop:
        if as_json:
            _print_json({"error": str(stop), "code": stop.code})
        typer.echo(f"openworker-durable: {cli_words.safe(stop).plain}", err=True)
        raise typer.Exit(stop.exit) from None


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"openworker-durable {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _alive(state: Path, row: Execution) -> bool | None:
    return cli_read.owner_alive(state, row.owner) if row.state == State.DISPATCHED else None


@app.command("list")
def list_(
    state: StateDir = None,
    only_open: Annotated[
        bool, typer.Option("--open/--all", help="Only open ones, or ended ones as well.")
    ] = False,
    session: Annotated[
        str, typer.Option("--session", metavar="ID", help="Only sessions whose id begins so.")
    ] = "",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Only this tool.")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most N.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List executions by their latest attempt: open ones first, then the newest."""
    folder = state or cli_read.default_state_dir()
    with _stopping(as_json):
        found = cli_read.read(
            folder,
            lambda conn: cli_read.listed(
                conn, session=session, tool=tool, only_open=only_open, limit=limit + 1
            ),
        )
    shown, more = found[:limit], len(found) > limit
    if as_json:
        made = [
            cli_words.execution_json(row, is_open)
            | cli_words.attempt_json(row, _alive(folder, row))
            for row, is_open in shown
        ]
        _print_json({"executions": made, "more": more})
        return
    out = cli_words.console()
    for title, wanted in (("Open", True), ("Ended", False)):
        lines = [
            cli_words.list_line(row, is_open, _alive(folder, row))
            for row, is_open in shown
            if is_open is wanted
        ]
        if lines:
            out.print(Text(title, style="bold"))
            out.print(cli_words.table(cli_words.LIST_COLUMNS, lines))
    if not shown:
        out.print(Text("No such executions."))
    if more:
        out.print(Text(f"There are more; --limit {2 * limit} shows more of them."))


@app.command()
def show(execution: Id, state: StateDir = None, as_json: AsJson = False) -> None:
    """Show one execution with all its attempts; never arguments or results."""
    folder = state or cli_read.default_state_dir()
    with _stopping(as_json):
        attempts, is_open, late = cli_read.read(folder, lambda c: cli_read.whole(c, execution))
    told = [(row, _alive(folder, row)) for row in attempts]
    if as_json:
        made = {
            **cli_words.execution_json(attempts[-1], is_open),
            "attempts": [cli_words.attempt_json(row, alive) for row, alive in told],
            "late_evidence": [cli_words.evidence_json(e) for e in late],
        }
        _print_json(made)
        return
    out = cli_words.console()
    out.print(cli_words.facts(cli_words.execution_facts(attempts[-1], is_open)))
    for row, alive in told:
        out.print(Text(f"\nAttempt {row.attempt}", style="bold"))
        out.print(cli_words.facts(cli_words.attempt_facts(row, alive)))
    if late:
        out.print(Text("\nCame later, changed nothing", style="bold"))
        out.print(cli_words.facts(cli_words.evidence_line(e) for e in late))


@app.command()
def history(execution: Id, state: StateDir = None, as_json: AsJson = False) -> None:
    """Show the audit rows of one execution, oldest first."""
    with _stopping(as_json):
        full, entries = cli_read.read(
            state or cli_read.default_state_dir(), lambda c: cli_read.events(c, execution)
        )
    if as_json:
        made = [cli_words.event_json(entry) for entry in entries]
        _print_json({"execution_id": full, "events": made})
        return
    columns = {
        name: {"no_wrap": name == "when"} for name in ("when", "try", "what", "state", "why")
    }
    out = cli_words.console()
    out.print(cli_words.safe(full))
    out.print(cli_words.table(columns, (cli_words.event_line(entry) for entry in entries)))


@app.command()
def doctor(state: StateDir = None, as_json: AsJson = False) -> None:
    """Show versions, the record's health, the host's seams and which tools are recorded."""
    found = cli_doctor.examine(state or cli_read.default_state_dir())
    if as_json:
        _print_json(found)
    else:
        for page in cli_doctor.pages(found):
            cli_words.console().print(page)
    error = found["ledger"]["error"]
    if error:
        typer.echo(f"openworker-durable: {cli_words.safe(error['error']).plain}", err=True)
    if not found["ok"]:
        raise typer.Exit(EXITS[error["code"] if error else "problem"][0])


_UNTOUCHED = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=_UNTOUCHED, name="run")
def run_(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND [ARGUMENTS]...",
            help="A command of this environment, `-m MODULE`, or a Python file.",
        ),
    ] = None,
) -> None:
    """Start a command of OpenWorker with the record attached; what follows is its own."""
    from .launch import run

    run(command or [])


@app.command()
def wrapper(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="The file to write; an earlier wrapper there is replaced."
        ),
    ],
) -> None:
    """Write a program for COWORKER_SERVER_BIN: the desktop app's server with the record."""
    from .launch import write_wrapper

    try:
        written = write_wrapper(path)
    except OSError as exc:
        said = cli_words.safe(f"{path} cannot be written ({exc.strerror}); name another file.")
        typer.echo(f"openworker-durable: {said.plain}", err=True)
        raise typer.Exit(EXITS["problem"][0]) from None
    typer.echo(f"COWORKER_SERVER_BIN={written}")


@app.command()
def demo(
    as_json: AsJson = False,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the state folders in DIR."),
    ] = None,
) -> None:
    """Kill a process at six points, with and without the record, and count the effects."""
    from .demo import run_demo

    raise typer.Exit(run_demo(as_json, keep))


if __name__ == "__main__":
    main()
