"""The crash matrix on the real host: six places, 48 combinations, each killed and gone on with.

`python -m tests.real.matrix` prints one line for each and how many are right; `--alone` does it
without the package.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.real.nursery import Nursery, Real, why_not

PLACES = ("approved", "in_before", "in_after", "returned", "in_thread", "after_save")
INSIDE = ("in_before", "in_after")


class Combination(NamedTuple):
    """Where to kill, how the calls were allowed, how many, and what comes first afterwards."""

    place: str
    authority: str
    calls: int
    then: str

    @property
    def name(self) -> str:
        """Return the combination as one word."""
        return f"{self.place}-{self.authority}-{self.calls}-{self.then}"


ALL = [
    Combination(*c)
    for c in itertools.product(PLACES, ("prompt", "grant"), (1, 3), ("resume", "message"))
]


def _open(life: Any, combination: list[Any], *, kill: bool) -> None:
    from tests.real.script import call, reply

    c = Combination(*combination)
    made = [call("send", f"call_{i}", to=f"m{i}") for i in range(c.calls)]
    life.open(
        reply(*made), kill=c.place if kill else "", at=f"m{c.calls // 2}",
        grants=("send",) if c.authority == "grant" else (),
    )  # fmt: skip


async def first(life: Any, combination: list[Any]) -> None:
    """The life that is killed."""
    _open(life, combination, kill=True)
    await life.attended_and_allowed("go")


async def second(life: Any, combination: list[Any]) -> Any:
    """The life after it."""
    _open(life, combination, kill=False)
    await life.go_on(Combination(*combination).then)
    return life.facts()


def wrong(c: Combination, effects: list[str], facts: dict[str, Any]) -> list[str]:
    """Return what is not right about one combination."""
    return [*_outside(c, effects, facts), *_items(c, facts), *_thread(c, facts)]


def _outside(c: Combination, effects: list[str], facts: dict[str, Any]) -> Iterator[str]:
    made = [
        json.loads(x["function"]["arguments"])["to"]
        for m in facts["messages"] for x in m.get("tool_calls") or []
    ]  # fmt: skip
    seen = Counter(e.split()[1] for e in effects)
    yield from (f"{to} repeated" for to, n in seen.items() if n > 1)
    yield from (f"{to} forgotten" for to in seen if to not in made)
    if c.then == "resume" and c.place not in INSIDE and len(effects) != c.calls:
        yield f"{len(effects)} effects of {c.calls}"


def _items(c: Combination, facts: dict[str, Any]) -> Iterator[str]:
    pending = [
        i for i in facts["items"] if i["kind"] == "recovery_required" and i["state"] == "pending"
    ]
    if len(pending) != (c.place in INSIDE):
        yield f"{len(pending)} recovery items"


def _thread(c: Combination, facts: dict[str, Any]) -> Iterator[str]:
    halted = c.place in INSIDE and c.then == "resume"
    messages = facts["messages"]
    # At a halt the calls behind the one in doubt stay unanswered: they wait for the decision.
    faults = [f for f in facts["faults"] if not (halted and f.startswith("a call without"))]
    yield from faults
    if halted:
        answered = {m.get("tool_call_id") for m in messages if m["role"] == "tool"}
        if f"call_{c.calls // 2}" not in answered:
            yield "the call in doubt is not answered"
    elif not messages or messages[-1].get("content") != "done":
        yield "the model was not called again"


def one(nursery: Nursery, folder: Path, c: Combination, *, durable: bool) -> list[str]:
    """Go through one combination and return what is not right."""
    real = Real(nursery, folder)
    real.killed(first, durable=durable, combination=list(c))
    facts = real.run(second, durable=durable, combination=list(c))
    return wrong(c, real.effects(), facts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The crash matrix on the real OpenWorker.")
    parser.add_argument("--alone", action="store_true", help="without openworker-durable")
    alone = parser.parse_args().alone
    if why_not():
        raise SystemExit(why_not())
    right = 0
    with tempfile.TemporaryDirectory() as scratch:
        nursery = Nursery(Path(scratch))
        for c in ALL:
            folder = Path(scratch, c.name)
            folder.mkdir()
            problems = one(nursery, folder, c, durable=not alone)
            right += not problems
            print(f"{c.name:36}{'; '.join(problems) or 'right'}", flush=True)
        nursery.close()
    print(f"{right} of {len(ALL)} right")


if __name__ == "__main__":
    main()
