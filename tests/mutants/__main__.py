"""`python -m tests.mutants`: every deliberate fault must be noticed by its named test (trap 11).

    python -m tests.mutants             all of them
    python -m tests.mutants dispatch    those with `dispatch` in their name
    python -m tests.mutants --list      names, what they attack, and their tests

Package and tests are copied; nothing in the working folder is changed. Exit status 1 when a
mutant survives, does not apply any more, or has a test that fails without it.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.core import CORE
from tests.mutants.host import HOST
from tests.mutants.kit import Copy, DoesNotApply, Mutant, failed_tests, last_words
from tests.mutants.settling import SETTLING
from tests.mutants.stores import STORES
from tests.mutants.ways import WAYS

MUTANTS: tuple[Mutant, ...] = CORE + HOST + SETTLING + STORES + WAYS
_print_lock = threading.Lock()


def judge(copy: Copy, mutant: Mutant) -> str:
    """Return what is wrong with a mutant; empty when its test notices it."""
    try:
        with copy.with_edits(mutant.edits):
            code, output = copy.pytest([mutant.node])
    except DoesNotApply as exc:
        return f"does not apply: {exc}"
    if code == 0:
        return "SURVIVES"
    if code == 1 and (" failed" in output or "Timeout" in output):
        return ""
    return f"its test did not run (pytest exit code {code}): {last_words(output)}"


def broken_tests(copy: Copy, nodes: Sequence[str]) -> dict[str, str]:
    """Run named tests without any mutant; return those that do not pass, and why."""
    code, output = copy.pytest(nodes)
    if code == 0:
        return {}
    if code == 1:
        failed = failed_tests(output)
        return {n: "fails" for n in nodes if any(f == n or f.startswith(f"{n}[") for f in failed)}
    files = sorted({n.partition("::")[0] for n in nodes})
    if len(files) > 1:  # one file that cannot be collected must not hide the others
        parts = ([n for n in nodes if n.startswith(f"{file}::")] for file in files)
        return {n: why for part in parts for n, why in broken_tests(copy, part).items()}
    return {n: f"cannot be run: {last_words(output)}" for n in nodes}


def run_all(
    mutants: Sequence[Mutant], jobs: int, folder: Path, tell: Callable[[Mutant, str, float], None]
) -> int:
    """Judge every mutant; return how many are not killed."""
    copies: queue.Queue[Copy] = queue.Queue()
    for n in range(jobs):
        copies.put(Copy(folder / f"copy{n}"))
    nodes = sorted({m.node for m in mutants})
    parts = [nodes[n::jobs] for n in range(jobs)]

    def with_copy(work: Callable[[Copy], object]) -> object:
        copy = copies.get()
        try:
            return work(copy)
        finally:
            copies.put(copy)

    broken: dict[str, str] = {}

    def check(part: Sequence[str]) -> None:
        found = with_copy(lambda copy: broken_tests(copy, part))
        assert isinstance(found, dict)
        broken.update(found)

    def one(mutant: Mutant) -> bool:
        begun = time.monotonic()
        if mutant.node in broken:
            problem = f"without the mutant its test {broken[mutant.node]}"
        else:
            problem = str(with_copy(lambda copy: judge(copy, mutant)))
        tell(mutant, problem, time.monotonic() - begun)
        return not problem

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(check, [part for part in parts if part]))
        return sum(not killed for killed in pool.map(one, mutants))


def tell(mutant: Mutant, problem: str, seconds: float) -> None:
    """Print one line about a mutant."""
    with _print_lock:
        mark = f"NOT KILLED  {problem}" if problem else "killed"
        print(
            f"{mutant.name:34} {mutant.attacks:12} {seconds:5.1f} s  {mark}  by {mutant.test}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("name", nargs="*", help="only mutants with this text in their name")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="only print the list")
    args = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if not args.name or any(n in m.name for n in args.name)]
    if args.list:
        for mutant in chosen:
            print(f"{mutant.name:34} {mutant.attacks:10} {mutant.test}")
        return 0
    if not chosen:
        print(f"no mutant is named like {args.name}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="owd-mutants-") as folder:
        failed = run_all(chosen, max(1, args.jobs), Path(folder), tell)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
