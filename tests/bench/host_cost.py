"""`python -m tests.bench.host_cost [--json] [--rounds N] [PART ...]`: what the real host pays.

Needs an importable `coworker`. Three children stay up and are asked in turns, so that every
ratio compares what ran on one machine in the same minutes: the host alone, the host with its
database in WAL mode, and the host with the plugin attached. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.figures import Result, median

WAYS = ("alone", "wal", "plugin")
PARTS = ("turn-50", "turn-200", "replies-50", "save")
SAVES = (100, 5000)


class Child:
    """One process with one way of running the host; does one piece of work at a time."""

    def __init__(self, way: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.host_child", way],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **work: Any) -> float:
        """Do one piece of work; return seconds.

        Raises:
            RuntimeError: the child died; its own message is on the error stream.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a child of the bench died")
        return float(line)

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class Bench:
    """The three children and the folders they work in."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.children = {way: Child(way) for way in WAYS}
        self._folders = 0

    def measure(self, **work: Any) -> dict[str, float]:
        """Return the median seconds of each way, taken in turns after one warm-up."""
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for n in range(self.rounds + 1):
            turn = n % len(WAYS)
            for way in WAYS[turn:] + WAYS[:turn]:
                self._folders += 1
                place = self.folder / str(self._folders)
                seconds = self.children[way].ask(folder=str(place), **work)
                if n:
                    times[way].append(seconds)
        return {way: median(taken) for way, taken in times.items()}

    def close(self) -> None:
        """Let all children end."""
        for child in self.children.values():
            child.close()


def turns(result: Result, bench: Bench, part: str) -> None:
    """One turn of approved calls: all in one reply, or one in each of many replies."""
    shape, _, number = part.partition("-")
    calls = int(number)
    found = bench.measure(work=shape, calls=calls)
    ms = {way: seconds / calls * 1e3 for way, seconds in found.items()}
    name = f"approved_call_{shape}_{calls}"
    note = "{plugin:.2f} ms with the plugin, {alone:.2f} alone, {wal:.2f} in WAL mode".format(**ms)
    result.add(f"{name}_vs_host", ms["plugin"] / ms["alone"], "ratio", at_most=1.0, note=note)
    result.add(f"{name}_vs_host_in_wal", ms["plugin"] / ms["wal"], "ratio", at_most=1.25)


def saves(result: Result, bench: Bench) -> None:
    """Saving two more messages of a thread, by its length."""
    found = {count: bench.measure(work="save", count=count) for count in SAVES}
    few, many = (found[count] for count in SAVES)
    for way in WAYS:
        goal = {"at_most": 1.2} if way == "plugin" else {}
        note = (
            f"{few[way] * 1e3:.3f} ms at {SAVES[0]} messages, {many[way] * 1e3:.3f} at {SAVES[1]}"
        )
        result.add(f"save_growth_{way}", many[way] / few[way], "ratio", note=note, **goal)


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.host_cost")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each way")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="only these parts")
    args = parser.parse_args()
    if importlib.util.find_spec("coworker") is None:
        print("the host is not installed here (no module `coworker`)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="owd-host-", dir=args.folder) as folder:
        bench, result = Bench(Path(folder), args.rounds), Result(Path(folder))
        for part in args.part or PARTS:
            print(f"{part} ...", file=sys.stderr, flush=True)
            if part == "save":
                saves(result, bench)
            else:
                turns(result, bench, part)
        bench.close()
    print(json.dumps(result.as_dict(), indent=2) if args.json else result.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
