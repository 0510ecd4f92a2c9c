"""The soak: many random runs of kills and restarts, each from a seed that reproduces it.

    python -m openworker_durable.testing.soak --runs 1000 --seed 1
    python -m openworker_durable.testing.soak --only 1000042

Exit status 1 when any run violates an invariant.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .effects import EffectService
from .scenario import PLACES
from .soak_runs import Run, play

APART = 1_000_000
"""Distance between the runs of two seeds."""

EVERY = 5.0
"""Seconds between two lines of progress."""


@dataclass
class Totals:
    """What all runs together came to."""

    runs: int = 0
    lives: int = 0
    kills: int = 0
    failed: list[Run] = field(default_factory=list)
    places: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, run: Run) -> None:
        """Take in one run."""
        self.runs += 1
        self.lives += len(run.lives)
        self.kills += run.kills
        self.places.update(run.places)
        if run.faults:
            self.failed.append(run)

    def as_json(self) -> dict[str, Any]:
        """Return everything for `--json`."""
        return {
            "runs": self.runs,
            "passed": self.runs - len(self.failed),
            "failed": len(self.failed),
            "processes": self.lives,
            "kills": self.kills,
            "places_reached": sorted(p for p in self.places if p in PLACES),
            "seconds": round(self.seconds, 1),
            "violations": [{"seed": run.seed, "faults": run.faults} for run in self.failed],
        }


def soak(seeds: Sequence[int], *, workers: int, folder: Path, told: Any = None) -> Totals:
    """Play one run for each seed.

    Args:
        seeds: of the runs.
        workers: how many at a time; each starts processes of its own.
        folder: where their state goes; that of a run without faults is not kept apart.
        told: called with each run and the totals so far.
    """
    totals, began = Totals(), time.monotonic()
    with EffectService() as service, ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(play, seed, folder / str(seed), service) for seed in seeds]
        for done in as_completed(waiting):
            run = done.result()
            totals.add(run)
            totals.seconds = time.monotonic() - began
            if told is not None:
                told(run, totals)
    return totals


class _Teller:
    """Prints progress now and then, and every violation at once."""

    def __init__(self, total: int) -> None:
        self.total, self.last = total, time.monotonic()

    def __call__(self, run: Run, totals: Totals) -> None:
        if run.faults:
            first = run.faults[0].splitlines()[0]
            more = f" (and {len(run.faults) - 1} more)" if len(run.faults) > 1 else ""
            print(f"VIOLATION seed {run.seed}: {first}{more}", file=sys.stderr, flush=True)
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            print(
                f"{totals.runs} of {self.total} runs, {totals.kills} kills, "
                f"{len(totals.failed)} failed, {totals.seconds:.0f} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = _parser().parse_args(arguments)
    seeds = args.only or [args.seed * APART + n for n in range(args.runs)]
    with tempfile.TemporaryDirectory(prefix="openworker-durable-soak-") as temporary:
        folder = args.keep or Path(temporary)
        totals = soak(seeds, workers=args.workers, folder=folder, told=_Teller(len(seeds)))
    if args.json:
        print(json.dumps(totals.as_json(), indent=2))
    else:
        _tell(totals)
    return 1 if totals.failed else 0


def _tell(totals: Totals) -> None:
    for run in totals.failed:
        print(run.story())
        print(f"  again: python -m openworker_durable.testing.soak --only {run.seed}")
    reached = sum(p in totals.places for p in PLACES)
    print(
        f"{totals.lives} processes, {totals.kills} killed, {reached} of {len(PLACES)} named "
        f"places reached, {totals.seconds:.0f} s"
    )
    print(f"{totals.runs - len(totals.failed)} passed, {len(totals.failed)} failed")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openworker_durable.testing.soak", description="Random kills and restarts."
    )
    parser.add_argument("--runs", type=int, default=100, help="how many runs (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="where the runs' seeds begin")
    parser.add_argument("--only", type=int, action="append", help="play this run again")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="runs at a time")
    parser.add_argument("--keep", type=Path, help="keep every state folder here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
