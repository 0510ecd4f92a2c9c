"""Tools: what is known about each, and the registry that runs them by name."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin, get_type_hints

ToolFunction = Callable[..., Any]

_JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
}


@dataclass
class ToolMetadata:
    """What a tool says about itself."""

    name: str | None = None
    category: str | None = None
    risk_level: str = "low"
    capabilities: list[str] = field(default_factory=list)
    requires_approval: bool = False
    description: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolSpec:
    """A registered tool."""

    name: str
    schema: dict[str, Any]
    func: ToolFunction
    metadata: Any = None


def tool(func: ToolFunction, *, metadata: Any) -> ToolFunction:
    """Attach `metadata` to `func` where a registry looks for it, and return `func`."""
    marked: Any = func
    marked.__aisuite_tool_metadata__ = metadata
    return func


def ask_user(question: str = "", options: list[str] | None = None) -> dict[str, Any]:
    """Ask the person a question; the engine answers it before the registry is reached."""
    return {"answer": "", "error": "nobody here"}


ASK_USER = tool(ask_user, metadata=ToolMetadata(category="interaction"))


def mcp_tool(server: str, func: ToolFunction) -> ToolFunction:
    """Return a server's tool as the registry takes it, under a name that begins with the server."""

    def invoke(**arguments: Any) -> Any:
        return func(**arguments)

    name = f"mcp__{server}__{func.__name__}"
    made: Any = invoke
    made.__name__, made.__coworker_schema__ = name, derive_schema(func)
    about = ToolMetadata(name, "mcp", "medium", capabilities=[server], requires_approval=True)
    return tool(invoke, metadata=about)


class ToolRegistry:
    """Tools by name; knows nothing of permissions."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolSpec] = {}

    def register(
        self, func: ToolFunction, *, metadata: Any = None, schema: dict[str, Any] | None = None
    ) -> ToolSpec:
        """Add `func` under its own name; a second tool of that name replaces the first."""
        name = getattr(func, "__name__", "")
        if not name:
            raise ValueError("a tool needs a __name__")
        spec = ToolSpec(
            name=name,
            schema=schema or getattr(func, "__coworker_schema__", None) or derive_schema(func),
            func=func,
            metadata=metadata or getattr(func, "__aisuite_tool_metadata__", None),
        )
        self._tools[name] = spec
        return spec

    def register_all(self, funcs: Iterable[ToolFunction]) -> None:
        """Add each of `funcs`."""
        for func in funcs:
            self.register(func)

    def names(self) -> list[str]:
        """Return the names in order of registration."""
        return list(self._tools)

    def get(self, name: str) -> ToolSpec | None:
        """Return the tool of that name, if there is one."""
        return self._tools.get(name)

    def schemas(self) -> list[dict[str, Any]]:
        """Return what the model is told about the tools."""
        return [spec.schema for spec in self._tools.values()]

    def execute(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call the tool of that name with `arguments` as keywords."""
        spec = self._tools.get(name)
        if spec is None:
            raise KeyError(name)
        return spec.func(**(arguments or {}))


def derive_schema(func: ToolFunction) -> dict[str, Any]:
    """Describe a function to the model, from its signature and docstring."""
    hints = _hints(func)
    named = {
        name: parameter
        for name, parameter in inspect.signature(func).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    return {
        "type": "function",
        "function": {
            "name": func.__name__,
            "description": inspect.getdoc(func) or "",
            "parameters": {
                "type": "object",
                "properties": {n: {"type": _json_type(hints.get(n, str))} for n in named},
                "required": [n for n, p in named.items() if p.default is p.empty],
            },
        },
    }


def _hints(func: ToolFunction) -> dict[str, Any]:
    try:
        return get_type_hints(func)
    except (NameError, TypeError):
        return {}


def _json_type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        some = [part for part in get_args(annotation) if part is not type(None)]
        return _json_type(some[0]) if len(some) == 1 else "string"
    return _JSON_TYPES.get(origin or annotation, "string")
