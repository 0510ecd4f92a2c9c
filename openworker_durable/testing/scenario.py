"""What one process under test does: a small frozen description that travels to a child process.

Nothing here runs anything. `crash.CrashLab` plays scenarios, `player.Player` is what plays them
inside the child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..failpoints import FAILPOINTS

SESSION = "s"
"""Id of the session that scenarios drive unless they say otherwise."""

CRASH_POINTS = (
    "after_approval",
    "in_tool_before_effect",
    "in_tool_after_effect",
    "tool_returned",
    "result_in_thread",
    "after_save",
)
"""The six places of the problem statement; they exist with and without the plugin.

`tool_returned` is the moment at which the host's engine has the result in its hands, which with
the plugin attached is after the outcome was committed.
"""

ANY = "any"
"""Kill place: the nth hit of whatever place is reached, counted over all of them."""

CALL = "call"
"""Kill place: the nth call of a Python function of this package, in any thread."""

PLACES = CRASH_POINTS + FAILPOINTS
"""Every place with a name at which a process can be killed."""


@dataclass(frozen=True)
class Kill:
    """Where the process kills itself with SIGKILL.

    Args:
        place: one of `PLACES`, or `ANY`, or `CALL`.
        nth: at which time of getting there, from 1.
    """

    place: str
    nth: int = 1

    def __post_init__(self) -> None:
        if self.place not in (*PLACES, ANY, CALL):
            raise ValueError(f"{self.place!r} is no kill place; see PLACES")

    def __str__(self) -> str:
        return f"{self.place}#{self.nth}"


@dataclass(frozen=True)
class Call:
    """One tool call of a scripted reply."""

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fail:
    """The model's service fails instead of replying, once in each process."""

    text: str = "500 from the model"


Reply = str | tuple[Call, ...] | Fail
"""One scripted reply: a text that ends the turn, calls, or a failure."""

Step = tuple[Any, ...]
"""One thing to do: a name of `STEPS` and its arguments."""

STEPS: dict[str, str] = {
    "start_gateway": "start the host's gateway; with the plugin, the start-up sweep comes first",
    "message": "(text) a message in the background; waits until the turn ends or is parked",
    "attended": "(text) a message with a person watching, saved at the host's checkpoints",
    "resume": "resume the session as durable resume does",
    "retry_button": "press the host's Retry button",
    "begin": "(step, *arguments) begin one of the four above and do not wait for it",
    "until": "(place, nth) wait until a place was reached that often, or nothing happens any more",
    "expect": "(place, nth) wait until a place was reached that often, however long it takes",
    "pause": "(name) wait until the test says `Child.go(name)`; it sees that by `Child.paused`",
    "stop": "press Stop",
    "cancel": "cancel the running turns; a call in its thread goes on",
    "approvals": "(word or words) answer prompts with this from now on; `leave` leaves them",
    "answer": "(word) resolve every pending prompt once, through the manager",
    "evidence": "(call id, source, event, result) a source says how an unknown call ended",
    "decide": "(call id or `*`, word, `inbox` or `ledger`) decide undecided calls",
    "settle": "wait until nothing runs and nothing is about to",
    "delete_session": "delete the session",
    "restart": "close the host and the plugin, and begin both again in the same process",
    "compact": "(count, summary) hide the first messages from the model",
    "detach": "detach the plugin; the host goes on alone",
}
"""The steps there are."""

RECOVER: tuple[Step, ...] = (("start_gateway",), ("resume",), ("settle",))
"""What happens after a kill: the host starts, the session is resumed, everything settles."""


@dataclass(frozen=True)
class Scenario:
    """One life of one process.

    Args:
        state_dir: the host's state folder; made when missing, kept afterwards.
        replies: what the model says, by progress of the thread, so that a restarted process
            goes on where the thread stands.
        steps: what is done, in order.
        host: which host; `reference`.
        durable: whether the plugin is attached.
        authorised_by: `prompt`, or `grant`: the session may use every tool without asking.
        approvals: how prompts are answered: a word such as `allow` or `deny`, several words
            taken in turn, or `leave`.
        kill: where the process kills itself, if anywhere.
        breaks: commits that fail as if the disk were full: (`commit.before:<verb>`, how often).
        session: the session's id.
        tools: `module:function` that makes more tools: it is called in the child with the
            process's `Tools` and returns tool functions.
        poll_seconds: how often the plugin looks for decisions of other processes, and for probes
            that are due; None: as it does by itself.
        grace_seconds: how long beyond its deadline a probe of a process that died is waited for;
            None: as the plugin does by itself.
    """

    state_dir: Path
    replies: tuple[Reply, ...]
    steps: tuple[Step, ...]
    host: str = "reference"
    durable: bool = True
    authorised_by: str = "prompt"
    approvals: str | tuple[str, ...] = "allow"
    kill: Kill | None = None
    breaks: tuple[tuple[str, int], ...] = ()
    session: str = SESSION
    tools: str = ""
    poll_seconds: float | None = None
    grace_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.host != "reference":
            raise ValueError(f"host {self.host!r} is not known; the kit drives `reference`")
        if self.authorised_by not in ("prompt", "grant"):
            raise ValueError(f"{self.authorised_by!r} is neither `prompt` nor `grant`")
        for place, _times in self.breaks:
            if place not in PLACES or not place.startswith("commit.before:"):
                raise ValueError(f"{place!r} is no commit that can be made to fail")
        for step in self.steps:
            if step[0] not in STEPS:
                raise ValueError(f"{step[0]!r} is no step; see STEPS")

    @property
    def world(self) -> str:
        """Return the name under which the service knows this state folder."""
        return str(self.state_dir)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return every call of every reply, in order."""
        return tuple(c for r in self.replies if isinstance(r, tuple) for c in r)

    def then(self, *steps: Step, **changes: Any) -> Scenario:
        """Return the next life over the same folder: other steps, no kill, nothing breaks."""
        return replace(self, **{"kill": None, "breaks": (), "steps": steps or RECOVER, **changes})


def reply(*calls: tuple[str, str, dict[str, Any]]) -> tuple[Call, ...]:
    """Return a scripted reply of (id, name, arguments)."""
    return tuple(Call(*call) for call in calls)


def one_call(name: str = "send", key: str = "k", call_id: str = "call_0") -> tuple[Reply, ...]:
    """Return a script of one call and a closing line."""
    return (reply((call_id, name, {"to": "ann", "key": key})), "done")


def one_turn(state_dir: Path, replies: Sequence[Reply] = (), **more: Any) -> Scenario:
    """Return the plainest scenario: the host starts, a person writes a line and watches."""
    steps: tuple[Step, ...] = (("start_gateway",), ("attended", "go"))
    return Scenario(state_dir, tuple(replies) or one_call(), steps, **more)
