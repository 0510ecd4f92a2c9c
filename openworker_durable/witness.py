"""What a protected call's own HTTP requests prove about its effect.

Connectors swallow exceptions: a read timeout after a POST comes back as an error text, and the
model takes it for "not done" and does it again. While a protected call runs, its requests are
noted: what was sent, and how each try ended. A request that may have been carried out and was not
heard back makes the outcome unknown, whatever the tool returned or raised (trap 12, C04). Nothing
of a request but its method, a digest and its end is kept, in memory, until the outcome is
committed. Pure: whoever watches a library reports here; see `hosts/http_hooks.py`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .models import Outcome
from .outcomes import REFUSING_STATUS, state_of
from .states import Reason, State

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, section 9.2.1)."""

IDEMPOTENT_METHODS = SAFE_METHODS | {"PUT", "DELETE"}
"""Methods that do the same when they are sent again (section 9.2.2): never in doubt."""


@dataclass
class Try:
    """One request that was handed to the network, once.

    Args:
        method: as sent, upper case.
        what: tells equal requests apart from others: a digest of all that was sent, or anything
            else that is equal only for the same request.
        counts: being sent twice would do something twice.
        status: of the reply; None when there was none.
        doubt: name of the exception after which the request may have been carried out.
    """

    method: str
    what: str
    counts: bool = True
    status: int | None = None
    doubt: str = ""

    def answered(self, status: int) -> None:
        """The service replied with an HTTP status."""
        self.status = status

    def failed(self, exc: BaseException) -> None:
        """It ended without a whole reply; what that proves is said by `outcomes.state_of`."""
        if self.status not in REFUSING_STATUS and state_of(exc, external=True) is State.UNKNOWN:
            self.doubt = type(exc).__name__

    @property
    def accepted(self) -> bool:
        """Say whether the service said that it did what was asked."""
        done = self.status is not None and 200 <= self.status < 300
        return done and self.counts and not self.doubt


@dataclass
class Witness:
    """What one protected call sent, in order; what changes nothing is left out."""

    tries: list[Try] = field(default_factory=list)
    over: bool = False

    def sent(self, method: str, what: str, *, counts: bool = True) -> Try:
        """Note that a request is being handed to the network; tell the `Try` how it ended.

        Args:
            method, what: see `Try`.
            counts: False for a request whose repetition does no harm, whatever its method.
        """
        method = method.upper()
        noted = Try(method, what, counts and method not in IDEMPOTENT_METHODS)
        if method not in SAFE_METHODS and not self.over:
            self.tries.append(noted)
        return noted

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have `witness()` return this one inside the block, and in what inherits its context.

        What is sent after the block, by something it left running, is not noted.
        """
        token = _witness.set(self)
        try:
            yield
        finally:
            self.over = True
            _witness.reset(token)

    def judge(self, outcome: Outcome) -> Outcome:
        """Return the outcome in the light of what was sent.

        Args:
            outcome: what the tool's return or exception says.

        Returns:
            `unknown` when a request that counts may have been carried out and nothing that came
            later says that the same request was; `unknown` for a failure when the last request
            that was to change anything was accepted and counts; otherwise `outcome`, with a note
            when a request that was in doubt was sent again.
        """
        if outcome.state is State.UNKNOWN:
            return outcome
        for index, noted in enumerate(self.tries):
            if noted.doubt and noted.counts and not self._accepted_later(index):
                return _unknown(f"{noted.method}: {noted.doubt}{self._times(noted)}")
        if outcome.state is State.FAILED and self.tries and self.tries[-1].accepted:
            return _unknown(f"{outcome.detail or 'an error'} after a request was accepted")
        again = next((t for t in self.tries if t.doubt and t.counts), None)
        if again is None:
            return outcome
        note = f"{again.method}{self._times(again)}; an earlier one may have been carried out too"
        return outcome.model_copy(update={"detail": note})

    def _accepted_later(self, index: int) -> bool:
        what = self.tries[index].what
        return any(t.what == what and t.accepted for t in self.tries[index + 1 :])

    def _times(self, noted: Try) -> str:
        count = sum(t.what == noted.what for t in self.tries)
        return f", sent {count} times" if count > 1 else ""


def _unknown(detail: str) -> Outcome:
    return Outcome(state=State.UNKNOWN, reason=Reason.AMBIGUOUS, detail=detail)


_witness: contextvars.ContextVar[Witness | None] = contextvars.ContextVar(
    "openworker_durable_witness", default=None
)


def witness() -> Witness | None:
    """Return the witness of the protected call this code runs for, or None outside one."""
    return _witness.get()
