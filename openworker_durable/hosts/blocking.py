"""When the host does not fit: its protected tools are blocked, and say why.

Only the registry's `execute` is wrapped, on the class, so that engines built before are
covered as well. Read-only tools go on. A call whose tool cannot be told is blocked (G4).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ..errors import DurableError
from ..protection import protection
from .gates import WAYS
from .names import HostNames
from .patching import Patches

CLASS = "ToolRegistry"
METHODS = ("execute", "execute_tool", "call", "call_tool", "invoke", "run")
"""Names a registry may run its tools by; the first is the one that was measured."""

_LOADED_FIRST = ("registry", "engine", "manager")


class ToolsBlocked(DurableError):
    """A protected tool was called on a host that openworker-durable does not fit."""


def reason(problems: list[str]) -> str:
    """Return what a blocked call answers: why, and how to go on without the plugin."""
    some = "; ".join(problems[:4]) + ("; and others" if len(problems) > 4 else "")
    return (
        "this call was not made: openworker-durable does not fit this version of the host "
        f"({some}), so tools with effects are blocked. Upgrade openworker-durable, or start the "
        "host without it; nothing is recorded then."
    )


def block(names: HostNames, patches: Patches, why: str) -> list[str]:
    """Wrap what runs the host's tools, so that protected ones are refused.

    Args:
        names: how the host's classes are found.
        patches: keeps what has to be put back.
        why: the text of the refusal.

    Returns:
        what was wrapped, as `module:Class.method`; empty when nothing can be blocked.
    """
    done = []
    for cls in _registries(names):
        for method in METHODS:
            if callable(getattr(cls, method, None)):
                patches.wrap(cls, method, _refusing(why))
                done.append(f"{cls.__module__}:{cls.__qualname__}.{method}")
                if method == METHODS[0]:
                    break
    if done:
        _block_gates(names, patches, why)
    return done


def _block_gates(names: HostNames, patches: Patches, why: str) -> None:
    """Let gates, which never reach a registry, answer in the host's words that nobody can agree.

    What they do is refused as well, should a handler be new.
    """
    with contextlib.suppress(Exception):  # a host's modules may raise anything
        manager = names.load("manager")
        for way in WAYS.values():
            if way.refused is not None and callable(getattr(manager, way.effect, None)):
                patches.wrap(manager, way.effect, _answering({**way.refused, "error": why}))
    with contextlib.suppress(Exception):
        patches.wrap(names.load("toolchain"), WAYS["request_tool"].effect, _raising(why))
    with contextlib.suppress(Exception):
        engine = names.load("engine")
        for way in WAYS.values():
            if inspect.isasyncgenfunction(getattr(engine, way.handler, None)):
                patches.wrap(engine, way.handler, _without(way.asker))


def _answering(answer: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(host: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: dict(answer)

    return make


def _raising(why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(host: Callable[..., Any]) -> Callable[..., Any]:
        def install(*args: Any, **kwargs: Any) -> Any:
            raise ToolsBlocked(why)

        return install

    return make


def _without(attribute: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(host: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(engine: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            before = getattr(engine, attribute, None)
            setattr(engine, attribute, None)
            try:
                async for event in host(engine, *args, **kwargs):
                    yield event
            finally:
                if getattr(engine, attribute, None) is None:
                    setattr(engine, attribute, before)

        return handle

    return make


def _registries(names: HostNames) -> list[type]:
    """Return the registry class: by its name, else every class that is called like it."""
    for which in _LOADED_FIRST:
        with contextlib.suppress(Exception):  # a host's modules may raise anything
            found = names.load(which)
            if which == "registry" and isinstance(found, type):
                return [found]
    return list(dict.fromkeys(_by_class_name(names.package)))


def _by_class_name(package: str) -> Iterator[type]:
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            found = getattr(module, "__dict__", {}).get(CLASS)
            if isinstance(found, type):
                yield found


def _refusing(why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(host: Callable[..., Any]) -> Callable[..., Any]:
        def execute(registry: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_protected(registry, _tool_name(args, kwargs)):
                raise ToolsBlocked(why)
            return host(registry, *args, **kwargs)

        return execute

    return make


def _tool_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the name of the tool that is called, empty when it cannot be told."""
    first = kwargs.get("name", args[0] if args else None)
    name = first if isinstance(first, str) else getattr(first, "name", "")
    return name if isinstance(name, str) else ""


def _is_protected(registry: Any, name: str) -> bool:
    try:
        spec = registry.get(name)
    except Exception:  # another shape: nothing is known of the tool
        return True
    if not name or (spec is not None and not hasattr(spec, "metadata")):
        return True
    func = getattr(spec, "func", None)
    return protection(name, getattr(spec, "metadata", None), func).protected
