"""Run many rounds: `python -m tests.real_server --rounds 200 [--seed S] [--alone]`."""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .model_server import Model
from .process import Server
from .rounds import Round, Seen, plan_of


def run(
    rounds: int, seed: int, *, alone: bool, folder: Path, seconds: float = math.inf
) -> tuple[list[Seen], Model]:
    """Play the rounds, each in a folder of its own; folders of good rounds are removed.

    No round starts after `seconds`.
    """
    model, until = Model(), time.monotonic() + seconds
    done: list[Seen] = []
    for number in range(rounds):
        if time.monotonic() > until:
            break
        seen = one(folder / f"{seed}-{number}", seed, number, model, alone=alone)
        done.append(seen)
        if seen.notes:
            print(f"round {number}: {seen}", flush=True)
        else:
            shutil.rmtree(folder / f"{seed}-{number}", ignore_errors=True)
    model.shutdown()
    model.server_close()
    return done, model


def one(folder: Path, seed: int, number: int, model: Model, *, alone: bool) -> Seen:
    """Play one round; a fault of it is a dead session with a note."""
    rng = random.Random(f"{seed}/{number}")
    server, plan, before = Server(folder, model.url, alone=alone), plan_of(rng), len(model.refused)
    played = Round(server, f"s{seed}n{number}", plan, rng)
    try:
        server.start()
        server.configure()
        asyncio.run(played.play())
    except Exception as fault:  # any fault is a finding, and the next round has to run
        played.seen.dead = 1
        played.seen.notes.append(f"stopped by {fault!r}")
    finally:
        server.close()
    played.seen.notes += [f"refused: {why}" for why in model.refused[before:]]
    return played.seen


def table(done: list[Seen], model: Model) -> str:
    """Return the result as lines of text."""
    inside = sum(s.items > 0 for s in done)
    late = sum(s.effects_at_kill > 0 for s in done)
    return "\n".join(
        [
            f"rounds                   {len(done)}",
            f"an effect before the kill {late}",
            f"with a recovery item     {inside}",
            f"repeats                  {sum(s.repeats for s in done)}",
            f"open effects, no item    {sum(s.open_effects for s in done)}",
            f"dead sessions            {sum(s.dead for s in done)}",
            f"rejected requests        {len(model.refused)} of {model.asked}",
            f"rounds with a note       {sum(bool(s.notes) for s in done)}",
        ]
    )


def main() -> int:
    """Read the arguments, run, print the table; 1 when anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_server")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="real-server-"))
    done, model = run(
        given.rounds, given.seed, alone=given.alone, folder=folder, seconds=given.seconds
    )
    print(table(done, model))
    return int(any(s.notes for s in done))


if __name__ == "__main__":
    sys.exit(main())
