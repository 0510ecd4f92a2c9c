"""Recovery policies: what may settle an unknown attempt of a tool without a person.

A policy belongs to a tool and is owned by OpenWorker: never inferred from a category, `manual`
when nothing is declared. The one at dispatch is kept with the attempt; the stricter of that and
the one now applies. `standing` is the question of rule 9, asked of durable facts alone, both when
recovery looks and again in the transaction that would start the next attempt. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from .errors import PolicyError
from .models import Execution, ToolIdentity
from .states import Reason, State


class PolicyKind(str, Enum):
    """What may settle an unknown attempt without a person."""

    MANUAL = "manual"
    IDEMPOTENT = "idempotent"
    RECONCILE = "reconcile"


@dataclass(frozen=True)
class RecoveryPolicy:
    """The recovery policy of one tool; made by `manual`, `idempotent` or `reconcile`.

    Args:
        kind: `manual`: a person decides. `idempotent`: the call may be made again with the same
            idempotency key. `reconcile`: the tool's reconciler is asked first.
        then: what follows when a reconciler cannot tell: `manual` or `idempotent`.
        key_valid: seconds that the service keeps an idempotency key, counted from the first
            dispatch.
        attempts: most attempts of one execution, the first included. For `reconcile`, more than
            one lets a call that provably did not happen be made again.
        repeatable: True when the tool may be called while an earlier call of it is unknown.

    Raises:
        PolicyError: the parts contradict each other.
    """

    kind: PolicyKind = PolicyKind.MANUAL
    then: PolicyKind = PolicyKind.MANUAL
    key_valid: float = 0.0
    attempts: int = 1
    repeatable: bool = False

    def __post_init__(self) -> None:
        if self.then is PolicyKind.RECONCILE:
            raise PolicyError("after `reconcile` comes `manual` or `idempotent`")
        if self.then is not PolicyKind.MANUAL and self.kind is not PolicyKind.RECONCILE:
            raise PolicyError("`then` belongs to `reconcile`; leave it out")
        if self.sends_key and not self.key_valid > 0:
            raise PolicyError(
                "`idempotent` needs a validity: the seconds that the service keeps a key"
            )
        if self.sends_key and self.attempts < 2:
            raise PolicyError("`idempotent` needs at least 2 attempts, the first one included")
        if not self.sends_key and self.key_valid:
            raise PolicyError("a key's validity belongs to `idempotent`; leave it out")
        if self.attempts < 1 or (self.kind is PolicyKind.MANUAL and self.attempts != 1):
            raise PolicyError("`attempts` counts the first one too, and `manual` allows no other")

    @property
    def sends_key(self) -> bool:
        """Say whether a call may be made again on the strength of its idempotency key."""
        return PolicyKind.IDEMPOTENT in (self.kind, self.then)

    def unprobed(self) -> RecoveryPolicy:
        """Return the policy of a call that the tool's reconciler cannot look up."""
        if self.kind is not PolicyKind.RECONCILE:
            return self
        if self.then is PolicyKind.MANUAL:
            return RecoveryPolicy(repeatable=self.repeatable)
        return replace(self, kind=self.then, then=PolicyKind.MANUAL)

    def __str__(self) -> str:
        """Return the text that is kept with an attempt; `parse` reads it."""
        parts: list[str] = [self.kind.value]
        if self.then is not PolicyKind.MANUAL:
            parts.append(f"then={self.then.value}")
        if self.sends_key:
            parts.append(f"key_valid={self.key_valid:.17g}")
        if self.attempts != 1:
            parts.append(f"attempts={self.attempts}")
        if self.repeatable:
            parts.append("repeatable")
        return " ".join(parts)


def manual(*, repeatable: bool = False) -> RecoveryPolicy:
    """Return the policy under which a person decides.

    Args:
        repeatable: see `RecoveryPolicy`.
    """
    return RecoveryPolicy(repeatable=repeatable)


def idempotent(*, key_valid: float, attempts: int = 3, repeatable: bool = False) -> RecoveryPolicy:
    """Return the policy of a tool whose service does one thing once for one key.

    Args:
        key_valid: seconds that the service keeps a key.
        attempts: most attempts, the first included.
        repeatable: see `RecoveryPolicy`.

    Raises:
        PolicyError: no validity, or fewer than two attempts.
    """
    return RecoveryPolicy(
        PolicyKind.IDEMPOTENT, key_valid=key_valid, attempts=attempts, repeatable=repeatable
    )


def reconcile(
    *, then: RecoveryPolicy | None = None, attempts: int = 1, repeatable: bool = False
) -> RecoveryPolicy:
    """Return the policy of a tool whose reconciler can find out what happened.

    Args:
        then: an `idempotent(...)` policy for when it cannot tell; None: a person decides.
        attempts: more than one lets a call that provably did not happen be made again.
        repeatable: see `RecoveryPolicy`.

    Raises:
        PolicyError: `then` is another kind of policy.
    """
    after = then or MANUAL
    return RecoveryPolicy(
        PolicyKind.RECONCILE, after.kind, after.key_valid, max(attempts, after.attempts), repeatable
    )


MANUAL = RecoveryPolicy()

_PART = re.compile(r"(then|key_valid|attempts)=(\S+)\Z")


def parse(text: str) -> RecoveryPolicy:
    """Read a policy as `str` wrote it.

    Returns:
        `MANUAL` for anything else, as the strictest there is.
    """
    kind, *parts = text.split(" ")
    values: dict[str, str] = {}
    for part in parts:
        found = _PART.match(part)
        if part != "repeatable" and found is None:
            return MANUAL
        if found is not None:
            values[found[1]] = found[2]
    try:
        return RecoveryPolicy(
            PolicyKind(kind), PolicyKind(values.get("then", "manual")),
            float(values.get("key_valid", 0)), int(values.get("attempts", 1)),
            "repeatable" in parts,
        )  # fmt: skip
    except (ValueError, PolicyError):
        return MANUAL


_ORDER = {
    (PolicyKind.MANUAL, PolicyKind.MANUAL): 0,
    (PolicyKind.RECONCILE, PolicyKind.MANUAL): 1,
    (PolicyKind.RECONCILE, PolicyKind.IDEMPOTENT): 2,
    (PolicyKind.IDEMPOTENT, PolicyKind.MANUAL): 3,
}
"""From the strictest on: each allows what the one before does, and more."""


def stricter(one: RecoveryPolicy, other: RecoveryPolicy) -> RecoveryPolicy:
    """Return what both policies allow."""
    first, _ = sorted((one, other), key=lambda p: _ORDER[p.kind, p.then])
    return replace(
        first,
        key_valid=min(one.key_valid, other.key_valid) if first.sends_key else 0.0,
        attempts=min(one.attempts, other.attempts),
        repeatable=one.repeatable and other.repeatable,
    )


@dataclass(frozen=True)
class Descriptor:
    """A tool as recovery compares it: who it is, and its policy."""

    identity: ToolIdentity
    policy: RecoveryPolicy = MANUAL


def identity_of(row: Execution) -> ToolIdentity:
    """Return the identity of the tool that an attempt called."""
    return ToolIdentity(
        source=row.tool_source, name=row.tool_name, version=row.tool_version,
        schema_digest=row.schema_digest, account=row.tool_account,
    )  # fmt: skip


class Standing(str, Enum):
    """What may happen to an unknown, undecided attempt without a person."""

    PERSON = "person"
    """Nothing: a person decides."""
    PROBE = "probe"
    """Its first probe is to be scheduled."""
    PROBING = "probing"
    """A probe is scheduled, or under way."""
    AGAIN = "again"
    """The next attempt may be made now."""
    LATER = "later"
    """The next attempt may be made if the tool turns out to be the same."""


_NO_MACHINE = frozenset(
    {Reason.LEGACY.value, Reason.CHANGED.value, Reason.LOST_THREAD.value}
)  # fmt: skip
"""Reasons of unknown rows that were never a call under this record."""

ABSENT = "did_not_happen"
"""What `found` holds when a probe showed that the effect did not happen."""


def key_margin(policy: RecoveryPolicy) -> float:
    """Return the seconds by which a key counts as expired before its validity ends."""
    return min(60.0, policy.key_valid / 10)


def key_usable(policy: RecoveryPolicy, first_dispatch: float, at: float) -> bool:
    """Say whether the key of an execution may be sent again.

    Args:
        first_dispatch: when its first attempt was dispatched, epoch seconds.
        at: now. A key from the future is not usable: the clock that would tell its age is wrong.
    """
    age = at - first_dispatch
    return 0 <= age < policy.key_valid - key_margin(policy)


def standing(attempts: Sequence[Execution], now: Descriptor | None, at: float) -> Standing:
    """Return what may happen to an execution whose latest attempt is unknown and undecided.

    Args:
        attempts: all of its attempts, first to last.
        now: the tool as it is now; None when that cannot be told yet.
        at: epoch seconds.
    """
    row = attempts[-1]
    recorded = parse(row.policy)
    if row.state is not State.UNKNOWN or not row.undecided or row.newer:
        return Standing.PERSON
    if row.reason in _NO_MACHINE or (now is not None and now.identity != identity_of(row)):
        return Standing.PERSON
    policy = recorded if now is None else stricter(recorded, now.policy)
    may_run = Standing.LATER if now is None else Standing.AGAIN
    left = row.attempt < policy.attempts
    if policy.kind is PolicyKind.RECONCILE:
        if row.found == ABSENT:
            return may_run if left else Standing.PERSON
        if row.probe_at is not None:
            return Standing.PROBING
        if row.probes == 0:
            return Standing.PROBE
    if policy.sends_key and left and key_usable(policy, attempts[0].dispatched_at, at):
        return may_run
    return Standing.PERSON
