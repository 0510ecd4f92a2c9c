"""Every sentence that the model reads because of us; none claims more than is known (G12).

Texts hold no arguments beyond the redacted preview, and no results except where a follow-up
carries one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from .models import Execution
from .snapshot import Snapshot
from .states import Decision, State


def provisional(tool: str, *, asked: bool = True) -> str:
    """Return the answer given at once to a call whose outcome is unknown.

    Args:
        asked: False when it is first tried to find out without a person.
    """
    who = "A person has been asked." if asked else "OpenWorker is finding out."
    return (
        f"The outcome of this {tool} call is unknown: it may have happened. {who} "
        "Do not repeat it and do not assume either way; a message will say what is known."
    )


def still_running(tool: str) -> str:
    """Return the answer given when a new message comes while the call still runs."""
    return (
        f"This {tool} call is still running; it may have happened. Do not repeat it; a message "
        "will bring its outcome."
    )


def not_started(tool: str) -> str:
    """Return the answer for a call that never began when a new message came first."""
    return f"This {tool} call was not started: a new message came first. Nothing was done."


def changed(tool: str) -> str:
    """Return the answer for a call whose stored form is not the one on record."""
    return (
        f"This {tool} call was not run as it stands here: it differs from the call that was "
        "recorded or approved. Whether the recorded call happened is kept apart; ask before "
        "proposing it again."
    )


def interrupted(tool: str) -> str:
    """Return the answer for a read or a question that was cut short."""
    return f"This {tool} call was interrupted; run it again if it is still needed."


def refused(reason: str) -> str:
    """Return the answer for a call that was not made because it could not be recorded."""
    return (
        "This call was not made: OpenWorker could not write its safety record first "
        f"({reason}). Nothing was done. Try again when that is fixed."
    )


def _named(row: Execution) -> str:
    about = f" ({row.preview})" if row.preview else ""
    return f"the earlier {row.tool_name} call{about}"


def follow_up(row: Execution, kind: str, outcome: Execution | None, shot: Snapshot | None) -> str:
    """Return the one message that tells the model what became of an unknown call.

    Args:
        row: the attempt decided, or whose outcome came late.
        kind: `happened`, `drop`, `retry` or `outcome`.
        outcome: the attempt whose outcome the message carries, if any.
        shot: that attempt's stored result, if any.
    """
    subject = _named(row)
    if kind == Decision.HAPPENED.value:
        return (
            f"About {subject}: a person says that it happened. Its result is not available. "
            "Do not repeat it."
        )
    if kind == Decision.DROP.value:
        return (
            f"About {subject}: a person says that it did not happen and is not to be done. "
            "Do not repeat it unless asked again."
        )
    if kind == Decision.RETRY.value and outcome is None:
        return (
            f"About {subject}: a person said that it had not happened and was to be run once more, "
            "but the conversation does not hold it as it was recorded. It was not run again."
        )
    lead = f"About {subject}: " + (
        "a person said that it had not happened, and it was run once more."
        if kind == Decision.RETRY.value
        else "its outcome is now known."
    )
    if outcome is None or outcome.state == State.UNKNOWN:
        return lead + " That run's outcome is unknown too: it may have happened. Do not repeat it."
    word = "It succeeded." if outcome.state == State.SUCCEEDED else "It failed."
    if shot is None:
        return f"{lead} {word} Its result is not available."
    return f"{lead} {word} Its result:\n{shot.text}"


def follow_up_card(row: Execution, kind: str, outcome: Execution | None) -> str:
    """Return the short line a person sees in the session for a follow-up."""
    if kind == Decision.HAPPENED.value:
        return f"Settled: {row.tool_name} happened."
    if kind == Decision.DROP.value:
        return f"Settled: {row.tool_name} did not happen and is left."
    if outcome is None:
        return f"{row.tool_name} could not be run once more: its call is gone."
    state = outcome.state.value if isinstance(outcome.state, State) else "unknown"
    verb = "was run once more" if kind == Decision.RETRY.value else "has ended"
    return f"{row.tool_name} {verb}: {state}."


def _did(row: Execution) -> str:
    word = row.decision.value if row.decision else getattr(row.state, "value", "unknown")
    about = f" ({row.preview})" if row.preview else ""
    return f"{row.tool_name}{about}: {'may have happened' if word == 'unknown' else word}"


def slot_warning(done: Sequence[Execution]) -> str:
    """Return the reason shown when an automation's slot, cut off before, is run again."""
    listed = "; ".join(_did(row) for row in done[:5])
    more = f"; and {len(done) - 5} more" if len(done) > 5 else ""
    return (
        f"This automation already ran for this time and was cut off. That run's calls: "
        f"{listed}{more}. Allow only what is still to be done."
    )


def tools_absent(names: Sequence[str]) -> str:
    """Return the notice a person sees when an allowed call waits for tools that are not there."""
    return (
        f"Waiting: {', '.join(sorted(set(names)))} cannot be reached, so the call that was "
        "allowed has not been run. Connect its server again, then press Retry; or send a "
        "message, and the call is not run."
    )


def repeat_warning(row: Execution, now: str = "") -> str:
    """Return the reason shown when a tool is called again while a call of it is unknown.

    Args:
        row: the earlier call.
        now: redacted line about the arguments of the new one.
    """
    return (
        f"An earlier {row.tool_name} call may have happened already; nobody has settled it yet. "
        "Allow only if this one should run as well.\n"
        f"Earlier: {row.preview or 'no arguments'}\n"
        f"Now: {now or 'no arguments'}"
    )
