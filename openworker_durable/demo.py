"""`openworker-durable demo`: the same kills, on the host alone and with the plugin.

A real process of the reference host makes one real HTTP call to a mail service that counts
what it received. The process is killed with SIGKILL at six places, once for a call that a
person approved and once for a call under a session grant; then it is started again. What is
shown is what the service counted and what stands in the saved conversation.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .demo_rows import POINTS, Row, Seen, rows_of, watch_point
from .demo_table import show
from .testing import CrashLab, EffectService

USAGE_ERROR = 2
Tick = Callable[[], None]


def run_demo(json_out: bool, keep: Path | None, *, durable: bool = True) -> int:
    """Run the demonstration and print it.

    Args:
        json_out: print one JSON object instead of the table.
        keep: make the plugin's state folder here, and leave it; it must not exist or be empty.
        durable: False leaves the plugin out of its own half, which must then fail.

    Returns:
        0 when every row is as promised, 1 when one is not, 2 when `keep` cannot be used.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        print(f"{keep} is there already and not an empty folder; name another one", file=sys.stderr)
        return USAGE_ERROR
    try:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        print(f"{keep} cannot be made ({exc.strerror}); name another folder", file=sys.stderr)
        return USAGE_ERROR
    with tempfile.TemporaryDirectory(prefix="openworker-durable-") as folder:
        rows = _compare(Path(folder), keep, durable)
    if json_out:
        print(json.dumps({"rows": [row.as_json() for row in rows]}, indent=2))
    else:
        show(rows, keep)
    return 0 if all(row.ok for row in rows) else 1


def _compare(folder: Path, keep: Path | None, durable: bool) -> list[Row]:
    """Play every point on both sides, the two sides at the same time."""
    with EffectService() as service, _progress() as tick, ThreadPoolExecutor(2) as pool:
        alone = pool.submit(_side, folder / "alone", None, service, False, tick)
        with_it = pool.submit(_side, folder / "durable", keep, service, durable, tick)
        return rows_of(alone.result(), with_it.result())


def _side(
    folder: Path, state_dir: Path | None, service: EffectService, durable: bool, tick: Tick
) -> list[Seen]:
    """Play every point in one state folder, each in a session of its own."""
    lab = CrashLab(folder, service)
    state_dir = state_dir or lab.folder()
    seen = []
    for point in POINTS:
        seen.append(watch_point(lab, state_dir, *point, durable=durable))
        tick()
    return seen


@contextlib.contextmanager
def _progress() -> Iterator[Tick]:
    """Show on the standard error how far it is; a line without a terminal."""
    console = Console(stderr=True)
    total = 2 * len(POINTS)
    if not console.is_terminal:
        print(f"killing {total} processes and starting each again ...", file=sys.stderr)
    bar = Progress(
        TextColumn("killing and restarting"), BarColumn(), MofNCompleteColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    lock = threading.Lock()
    with bar:
        task = bar.add_task("points", total=total)

        def tick() -> None:
            with lock:
                bar.advance(task)

        yield tick
