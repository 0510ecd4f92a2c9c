"""`python -m tests.bench [--json] [--quick] [--folder DIR] [PART ...]`: what the record costs.

Every ratio compares two ways that were run in turns in one process on one file system; nothing
is asserted. The goals are those of the project; `OVER` marks a figure beyond its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import hosts, record
from tests.bench.figures import Result, median

PARTS = ("unprotected", "per-reply", "protected", "approved", "throughput", "syncs", "start-up")


def start_up(result: Result) -> None:
    """Time import and attach in fresh processes."""
    runs = []
    for _ in range(7):
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.child", "attach"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        runs.append([float(part) for part in done.stdout.split()])
    imported, host, attached = (median(part) for part in zip(*runs, strict=True))
    result.add(
        "import_and_attach_ms", imported + attached, "ms", at_most=150,
        note=f"import {imported:.0f}, attach {attached:.0f}; the host itself {host:.0f} more",
    )  # fmt: skip


def run(folder: Path, parts: Sequence[str], *, quick: bool) -> Result:
    """Take all figures in a folder of its own."""
    result = Result(folder)
    few = 5 if quick else 1

    def at(name: str) -> Path:
        place = folder / name
        place.mkdir()
        return place

    steps: list[tuple[str, Callable[[Path], object]]] = [
        ("unprotected", lambda f: asyncio.run(hosts.unprotected(result, f, 200 // few))),
        ("per-reply", lambda f: asyncio.run(hosts.per_reply(result, f, 100 // few))),
        ("protected", lambda f: record.protected_call(result, f, 600 // few)),
        ("approved", lambda f: asyncio.run(hosts.approved(result, f, 10 // few))),
        ("throughput", lambda f: record.throughput(result, f, 600 // few)),
        ("syncs", lambda f: record.syncs(result, f)),
        ("start-up", lambda f: start_up(result)),
    ]
    for name, step in steps:
        if parts and name not in parts:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        step(at(name))
    return result


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="a fifth of the calls")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="only these parts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="owd-bench-", dir=args.folder) as folder:
        result = run(Path(folder), args.part, quick=args.quick)
        print(json.dumps(result.as_dict(), indent=2) if args.json else result.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
