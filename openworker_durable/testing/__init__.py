"""The crash kit: for tests of this package, and of connectors whose tools must survive a kill.

`EffectService` is the outside world, `CrashLab` starts and kills real processes,
`check_invariants` says what must hold afterwards. See docs/testing-kit.md.
"""

from __future__ import annotations

from .crash import Child, CrashLab, every_kill
from .effects import Behaviour, Effect, EffectService, post
from .invariants import check_invariants
from .outcome import Outcome
from .scenario import (
    CRASH_POINTS,
    PLACES,
    RECOVER,
    STEPS,
    Call,
    Fail,
    Kill,
    Scenario,
    one_call,
    one_turn,
    reply,
)
from .tools import ACTS, READS, Tools

__all__ = [
    "ACTS",
    "CRASH_POINTS",
    "PLACES",
    "READS",
    "RECOVER",
    "STEPS",
    "Behaviour",
    "Call",
    "Child",
    "CrashLab",
    "Effect",
    "EffectService",
    "Fail",
    "Kill",
    "Outcome",
    "Scenario",
    "Tools",
    "check_invariants",
    "every_kill",
    "one_call",
    "one_turn",
    "post",
    "reply",
]
