"""What is given from outside about a call has to pass here before anything of it is written.

A result that a probe found, or that a named source gives, passes the output that its tool
declares: a JSON Schema (draft 2020-12), or a type that pydantic validates; where none is declared,
its shape and size alone are looked at. A schema's references are never fetched: one that does not
lead to the schema itself is refused. Nothing that is raised here holds a value of the result, only
paths made of declared names, and rules. Pure: no I/O.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from .errors import DurableError, PolicyError
from .models import Outcome
from .reconciler import Finding, VerdictKind
from .snapshot import encode
from .states import Reason, State

MAX_RESULT = 4 * 1024 * 1024
"""Most characters of a result, written as JSON, that is taken from outside."""

MAX_DEPTH = 60
"""Most containers around a value of a result that is taken from outside."""

DRAFT = "https://json-schema.org/draft/2020-12/schema"

DID_NOT_HAPPEN = {"error": "This call did not happen: it was looked for, and it is not there."}
"""What the model sees of a call that was shown not to have happened and is not made again."""

_SHOWN = 5
_RULE = re.compile(r"[A-Za-z0-9_$.-]{1,40}\Z")

Check = Callable[[Any], str]
"""Takes a JSON value; returns why it is refused, empty when it passes."""


class ResultRefused(DurableError):
    """What was given from outside does not pass; nothing was written, the attempt stands.

    Args:
        why: paths and rules, never a value of what was given.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"what was given is not taken: {why}")
        self.why = why


# -- the door
def usable(output: Any) -> None:
    """Make sure that results can be checked against a declared output.

    Args:
        output: see `Declaration`: a JSON Schema as a dict, a type, or None.

    Raises:
        PolicyError: it is no valid schema, or no type that pydantic can validate; it refers to
            something outside itself; or `jsonschema` is needed and not installed.
    """
    _check_of(output)


def checked(result: Any, output: Any = None, *, limit: int = MAX_RESULT) -> Any:
    """Return a result that was given from outside, once it has passed.

    Args:
        result: what the call is said to have returned. It has to be JSON as it stands: what a
            live result may hold beside that (dates, bytes, NaN) is not taken from outside. A
            type is checked strictly, as the given value is written and not a converted one.
        output: see `usable`.
        limit: most characters that it may have as JSON.

    Returns:
        a copy in plain JSON values: exactly what was checked.

    Raises:
        ResultRefused: it does not pass.
        PolicyError: see `usable`.
    """
    check = _check_of(output)
    why, value = _as_json(result, limit)
    why = why or check(value)
    if why:
        raise ResultRefused(why)
    return value


def outcome_from(state: State, value: Any, reason: Reason, output: Any = None) -> Outcome:
    """Return the outcome of an attempt whose end was given from outside, ready to be committed.

    Args:
        state: `succeeded` or `failed`.
        value: for `succeeded` the result, which has to pass `output`; for `failed` the service's
            error, of which shape and size are checked. A text `x` is shown as `{"error": x}`,
            the way a live failure is.
        reason: `reconciled` or `evidence`.
        output: see `usable`.

    Returns:
        the outcome, its snapshot captured as that of a live result; its detail is empty.

    Raises:
        ResultRefused, PolicyError: see `checked`.
        ValueError: `state` is no known outcome.
    """
    if state is State.SUCCEEDED:
        return Outcome(state=state, reason=reason, snapshot=encode(checked(value, output)))
    if state is not State.FAILED:
        raise ValueError(f"{state.value} is no known outcome")
    shown = value if isinstance(value, dict) and "error" in value else {"error": value}
    return Outcome(state=state, reason=reason, snapshot=encode(checked(shown)))


def outcome_of(finding: Finding, output: Any = None) -> Outcome:
    """Return the outcome that a probe's finding settles an attempt with.

    Args:
        finding: happened, failed, or did not happen.
        output: see `usable`.

    Raises:
        ResultRefused, PolicyError: see `checked`.
        ValueError: the finding settles nothing.
    """
    if finding.verdict is VerdictKind.HAPPENED:
        return outcome_from(State.SUCCEEDED, finding.result, Reason.RECONCILED, output)
    if finding.verdict is VerdictKind.FAILED:
        return outcome_from(State.FAILED, finding.result, Reason.RECONCILED)
    if finding.verdict is VerdictKind.DID_NOT_HAPPEN:
        return outcome_from(State.FAILED, DID_NOT_HAPPEN, Reason.RECONCILED)
    raise ValueError(f"{finding.word} settles nothing")


def _check_of(output: Any) -> Check:
    if output is None:
        return lambda _value: ""
    return _by_schema(output) if isinstance(output, dict) else _by_type(output)


# -- shape and size
def shape(value: Any, limit: int = MAX_RESULT) -> str:
    """Return why a value is not JSON as it stands, or too large; empty when it is fine."""
    left = limit
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        if depth > MAX_DEPTH:
            return f"it is nested more than {MAX_DEPTH} deep, or holds itself"
        left -= _least_size(one)
        if left < 0:
            return f"it is longer than {limit} characters"
        why = _scalar_fault(one)
        if why:
            return why
        todo += [(part, depth + 1) for part in _parts(one)]
    return ""


def _least_size(value: Any) -> int:
    """Return how many characters a value has at least, its parts but for the keys left out."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(len(k) for k in value if isinstance(k, str))
    if isinstance(value, str):
        return 2 + len(value)
    return 1 + len(value) if isinstance(value, (list, tuple)) else 1


def _scalar_fault(value: Any) -> str:
    if isinstance(value, dict):
        odd = any(not isinstance(key, str) for key in value)
        return "it has a key that is no text" if odd else ""
    if isinstance(value, float) and not math.isfinite(value):
        return "it holds a number that JSON does not have"
    if value is None or isinstance(value, (bool, int, float, str, list, tuple)):
        return ""
    return f"it holds a value of the type {type(value).__name__}, which JSON does not have"


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _as_json(result: Any, limit: int) -> tuple[str, Any]:
    """Return (why it is refused, the value that its JSON stands for)."""
    why = shape(result, limit)
    if why:
        return why, None
    try:
        text = json.dumps(result)
        value = json.loads(text)
    except Exception:  # a whole number with too many digits, a container that lies
        return "it cannot be written as JSON", None
    if len(text) > limit:
        return f"it is longer than {limit} characters", None
    return "", value


# -- a JSON Schema
class _Library(NamedTuple):
    validator: Any
    invalid: type[Exception]
    specification: Any
    registry: Any
    unresolvable: type[Exception]


def _library() -> _Library:
    """Import what checks a schema; it is an extra of this package."""
    names = ("jsonschema", "referencing.exceptions", "referencing.jsonschema")
    try:
        schemas, errors, drafts = map(importlib.import_module, names)
        known = importlib.import_module("jsonschema_specifications").REGISTRY
    except ImportError:
        raise PolicyError(
            "a tool's output is declared as a JSON Schema, and the library that checks it is not "
            "installed: pip install 'openworker-durable[schema]', or declare a type"
        ) from None
    return _Library(
        schemas.Draft202012Validator, schemas.SchemaError, drafts.DRAFT202012, known,
        errors.Unresolvable,
    )  # fmt: skip


def _by_schema(schema: dict[str, Any]) -> Check:
    if str(schema.get("$schema", DRAFT)).rstrip("#") != DRAFT:
        raise PolicyError(
            f"the declared output schema is of another draft: write `$schema` as {DRAFT}, or "
            "leave it out"
        )
    lib = _library()
    _valid(lib, schema)
    validator = lib.validator(schema, registry=lib.registry)
    names = frozenset(_names(schema))
    return lambda value: _refused_by(lib, validator, names, value)


def _valid(lib: _Library, schema: dict[str, Any]) -> None:
    """Refuse a schema that is itself invalid, or that refers to something outside itself."""
    try:
        lib.validator.check_schema(schema)
        resource = lib.specification.create_resource(schema)
        _resolve(resource, lib.registry.resolver_with_root(resource))
    except lib.invalid as exc:
        where = _shown_path(getattr(exc, "absolute_path", ()), frozenset(_words(schema)))
        rule = _shown_rule(getattr(exc, "validator", ""))
        raise PolicyError(f"the declared output schema is invalid at {where}, by {rule}") from None
    except lib.unresolvable:
        raise PolicyError(
            "the declared output schema refers to something outside itself, which is never "
            "fetched; put it under `$defs`"
        ) from None
    except Exception as exc:
        kind = type(exc).__name__
        raise PolicyError(f"the declared output schema cannot be used ({kind})") from None


def _resolve(resource: Any, resolver: Any) -> None:
    """Look every reference of a schema up, without fetching anything."""
    if isinstance(resource.contents, dict):
        for word in ("$ref", "$dynamicRef"):
            if word in resource.contents:
                resolver.lookup(resource.contents[word])
    for part in resource.subresources():
        _resolve(part, resolver.in_subresource(part))


def _refused_by(lib: _Library, validator: Any, names: frozenset[str], value: Any) -> str:
    try:
        errors = list(itertools.islice(validator.iter_errors(value), _SHOWN + 1))
        return _listed([_said(e, names) for e in errors])
    except (lib.unresolvable, RecursionError):
        broken = True
    except Exception:  # a rule that the library cannot apply to such a value
        broken = False
    if broken:
        raise PolicyError("the declared output schema refers to itself, or elsewhere, without end")
    return "the declared output schema cannot be applied to it"


def _said(error: Any, names: frozenset[str]) -> str:
    line = f"{_shown_path(error.absolute_path, names)}: {_shown_rule(error.validator)}"
    if error.validator == "required":
        lacking = [n for n in error.validator_value if n not in error.instance]
        line += f" ({', '.join(lacking[:_SHOWN])})"
    return line


def _names(schema: Any) -> Iterator[str]:
    """Yield the names of properties that a schema declares, at any depth."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for part in schema.values():
            yield from _names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _names(part)


def _words(schema: Any) -> Iterator[str]:
    """Yield every key of a schema, at any depth."""
    if isinstance(schema, dict):
        yield from schema
    for part in _parts(schema):
        yield from _words(part)


# -- a type
def _by_type(output: Any) -> Check:
    try:
        adapter: TypeAdapter[Any] | None = TypeAdapter(output)
    except Exception:
        adapter = None
    if adapter is None or isinstance(output, str):
        raise PolicyError(
            f"the declared output is neither a JSON Schema nor a type that pydantic can "
            f"validate ({_name_of(output)}); declare one of the two"
        )
    names = frozenset(_names(_schema_of(adapter)))
    return lambda value: _refused_by_type(adapter, _name_of(output), names, value)


def _name_of(output: Any) -> str:
    return str(getattr(output, "__name__", type(output).__name__))[:60]


def _schema_of(adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.json_schema()
    except Exception:  # a type may be one for which there is no schema; its paths are not shown
        return {}


def _refused_by_type(
    adapter: TypeAdapter[Any], name: str, names: frozenset[str], value: Any
) -> str:
    unusable = False
    try:
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
        return _listed(
            [f"{_shown_path(e['loc'], names)}: {_shown_rule(e['type'])}" for e in found[:_SHOWN]]
            + [""] * (len(found) > _SHOWN)
        )
    except PydanticUserError:
        unusable = True
    except Exception:  # a validator of the type's own
        return f"the check by {name} failed"
    if unusable:
        raise PolicyError(f"the declared output {name} is not fully defined; define it first")
    return ""


# -- words
def _shown_path(path: Iterable[Any], names: frozenset[str]) -> str:
    """Return where something stands, with the names that nobody declared left out."""
    out = "$"
    for part in itertools.islice(path, 20):
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part[:60]}" if part in names and part.isprintable() else ".*"
    return out


def _shown_rule(rule: Any) -> str:
    text = str(rule)
    return f"rule `{text}`" if rule and _RULE.match(text) else "a rule"


def _listed(lines: list[str]) -> str:
    more = ["and more"] if len(lines) > _SHOWN else []
    return "; ".join([*lines[:_SHOWN], *more])
