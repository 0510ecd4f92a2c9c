"""What is declared about a tool: its policy, reconciler, output schema, and what its errors prove.

Three ways, from the weakest to the strongest: on the tool's function (`@recoverable`), by
registration (`register`), in the person's configuration file (`config`). A tool is named exactly:
by its name, or `mcp:server/tool`; no pattern widens by itself. Registrations hold for this process.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .errors import PolicyError
from .models import ToolIdentity
from .policy import MANUAL, PolicyKind, RecoveryPolicy
from .reconciler import Reconciler

F = TypeVar("F", bound=Callable[..., Any])

POLICY_FIELD = "recovery_policy"
"""The attribute of a tool's spec (or of its function) that carries a `RecoveryPolicy`."""

DECLARED_FIELD = "__durable_declared__"
"""The attribute of a tool's function that carries what `recoverable` declared."""

_KEY = re.compile(r"(mcp:[^/\s*?\[\]]+/)?[A-Za-z0-9_.-]+\Z")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64


@dataclass(frozen=True)
class Declaration:
    """What is declared about one tool.

    Args:
        policy: None: nothing is declared about it, so `manual`.
        reconciler: asked under a `reconcile` policy.
        output: what a result given from outside has to pass: a JSON Schema as a dict, or a type
            that pydantic can validate; None: only shape and size are checked.
        never_began: exceptions that the tool raises only before its effect can begin.
        may_have_begun: exceptions after which its effect may have happened.
    """

    policy: RecoveryPolicy | None = None
    reconciler: Reconciler | None = None
    output: Any = None
    never_began: tuple[type[BaseException], ...] = ()
    may_have_begun: tuple[type[BaseException], ...] = ()

    def under(self, other: Declaration) -> Declaration:
        """Return this with whatever `other` declares put in its place."""
        changes = {
            name: getattr(other, name)
            for name in ("policy", "reconciler", "output", "never_began", "may_have_begun")
            if getattr(other, name)
        }
        return replace(self, **changes)

    def checked(self, key: str) -> Declaration:
        """Return it.

        Args:
            key: the tool's, for the message.

        Raises:
            PolicyError: `reconcile` is declared and no reconciler is.
        """
        policy = self.policy or MANUAL
        if policy.kind is PolicyKind.RECONCILE and self.reconciler is None:
            raise PolicyError(
                f"tool {key}: its policy is `reconcile`, but no reconciler is declared for it; "
                "register one, or choose `manual`"
            )
        return self


NOTHING = Declaration()


def recoverable(
    policy: RecoveryPolicy | None = None,
    *,
    reconciler: Reconciler | None = None,
    output: Any = None,
    never_began: Iterable[type[BaseException]] = (),
    may_have_begun: Iterable[type[BaseException]] = (),
) -> Callable[[F], F]:
    """Declare something about the decorated tool; see `Declaration`.

    Raises:
        PolicyError: `reconcile` without a reconciler.
    """
    made = Declaration(policy, reconciler, output, tuple(never_began), tuple(may_have_begun))

    def mark(func: F) -> F:
        name = getattr(func, "__name__", "?")
        setattr(func, DECLARED_FIELD, made.checked(name))
        DECLARATIONS.decorated(name, made)
        return func

    return mark


def tool_key(identity: ToolIdentity) -> str:
    """Return the exact key under which something is declared about a tool of a host."""
    server = identity.source.removeprefix("mcp:")
    if server == identity.source:
        return identity.name
    prefix = mcp_name(server, "")
    return f"mcp:{server}/{identity.name.removeprefix(prefix)}"


def mcp_name(server: str, tool: str) -> str:
    """Return the name under which OpenWorker offers an MCP server's tool to the model."""
    made = f"mcp__{_NOT_IN_NAMES.sub('_', server)}__{_NOT_IN_NAMES.sub('_', tool)}"
    return made[:_LONGEST_NAME]


def normal_key(key: str) -> str:
    """Return a tool's key as `tool_key` writes it.

    Raises:
        PolicyError: it is no exact name.
    """
    if not _KEY.match(key):
        raise PolicyError(
            f"{key!r} is no tool: write its exact name, or `mcp:server/tool`; patterns are not "
            "taken"
        )
    if not key.startswith("mcp:"):
        return key
    server, _, tool = key.removeprefix("mcp:").partition("/")
    return tool_key(ToolIdentity(source=f"mcp:{server}", name=mcp_name(server, tool)))


@dataclass
class Declarations:
    """What is declared by registration and by the person, by the tools' keys."""

    _registered: dict[str, Declaration] = field(default_factory=dict)
    _decorated: dict[str, Declaration] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def register(
        self,
        tool: str,
        policy: RecoveryPolicy | None = None,
        *,
        reconciler: Reconciler | None = None,
        output: Any = None,
        never_began: Iterable[type[BaseException]] = (),
        may_have_begun: Iterable[type[BaseException]] = (),
    ) -> None:
        """Declare something about a tool by its exact name; what is left out stays as it was.

        Args:
            tool: its name, or `mcp:server/tool`.

        Raises:
            PolicyError: no exact name, or `reconcile` without a reconciler.
        """
        key = normal_key(tool)
        made = Declaration(policy, reconciler, output, tuple(never_began), tuple(may_have_begun))
        with self._lock:
            there = self._registered.get(key, NOTHING)
            self._registered[key] = there.under(made).checked(key)

    def forget(self, tool: str) -> None:
        """Take back what was registered about a tool."""
        with self._lock:
            self._registered.pop(normal_key(tool), None)

    def decorated(self, name: str, made: Declaration) -> None:
        """Note that a tool's function was decorated; for `anything_about` alone."""
        with self._lock:
            self._decorated[name] = made

    def anything_about(
        self, key: str, built_in: Mapping[str, Declaration] | None = None
    ) -> Declaration:
        """Return what is declared about a tool by its key, before any tool is there.

        Args:
            key: the tool's.
            built_in: see `of`.
        """
        with self._lock:
            found = self._decorated.get(key, NOTHING)
            return (
                (built_in or {})
                .get(key, NOTHING)
                .under(found)
                .under(self._registered.get(key, NOTHING))
            )

    def registered(self, key: str) -> Declaration:
        """Return what is registered about a tool."""
        with self._lock:
            return self._registered.get(key, NOTHING)

    def of(
        self,
        spec: Any,
        identity: ToolIdentity,
        *,
        person: Mapping[str, RecoveryPolicy] | None = None,
        built_in: Mapping[str, Declaration] | None = None,
    ) -> Declaration:
        """Return all that is declared about a tool; the stronger word counts, part by part.

        Args:
            spec: the host's tool spec.
            identity: the tool's.
            person: policies of the person's configuration file, by key.
            built_in: what comes with this package for tools of the host, by key.

        Raises:
            PolicyError: what is declared is unknown, or contradicts itself.
        """
        key = tool_key(identity)
        found = (built_in or {}).get(key, NOTHING)
        found = found.under(_on_function(spec)).under(self.registered(key))
        chosen = (person or {}).get(key)
        if chosen is not None:
            found = replace(found, policy=chosen)
        return found.checked(key)


def _on_function(spec: Any) -> Declaration:
    func = getattr(spec, "func", None)
    found = getattr(func, DECLARED_FIELD, None)
    declared = found if isinstance(found, Declaration) else NOTHING
    for holder in (spec, func):
        policy = getattr(holder, POLICY_FIELD, None)
        if policy is None:
            continue
        if not isinstance(policy, RecoveryPolicy):
            raise PolicyError(
                f"tool {spec.name}: {POLICY_FIELD} must be a RecoveryPolicy, "
                f"found {type(policy).__name__}; remove it or declare one this version knows"
            )
        return replace(declared, policy=policy)
    return declared


DECLARATIONS = Declarations()
"""What is registered in this process; `register` adds to it."""

register = DECLARATIONS.register
forget = DECLARATIONS.forget
