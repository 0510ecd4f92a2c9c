"""C11 and G2: whatever a tool returns becomes text, and the same text live and rebuilt."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.snapshot import MAX_TEXT, Snapshot, encode


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("canary")


class UnprintableText(str):
    def __str__(self) -> str:
        raise RuntimeError("canary")


class NoTruth:
    """Like an array: it has no truth value, and JSON cannot hold it."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


class Stop(Exception):
    pass


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise Stop


def cycle() -> Any:
    value: dict[str, Any] = {"name": "loop"}
    value["self"] = [value]
    return value


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


CASES: dict[str, tuple[Any, bool, bool]] = {
    # name: (result, lossy, native)
    "text": ("plain", False, True),
    "none": (None, False, True),
    "number": (1.5, False, True),
    "nan": ({"x": float("nan"), "y": float("-inf")}, False, True),
    "lone surrogate": ("a\ud800b", False, True),
    "lone surrogate inside": ({"a\udfff": "\ud800"}, False, True),
    "nul": ("a\x00b", False, True),
    "int keys": ({1: "a", 2: {3: None}}, False, True),
    "bytes": (b"\x00\xff", False, False),
    "bytes inside": ({"x": b"raw"}, False, False),
    "datetime": ({"at": datetime.datetime(2026, 1, 2, 3, 4)}, False, False),
    "decimal": ([decimal.Decimal("1.10")], False, False),
    "set": ({"x": {1}}, False, False),
    "tuple keys": ({(1, 2): "a"}, True, False),
    "cycle": (cycle(), True, False),
    "too deep": (nested(100_000), True, False),
    "unprintable": (Unprintable(), True, False),
    "unprintable inside": ({"a": [Unprintable()], "b": 1}, True, False),
    "unprintable key": ({Unprintable(): 1}, True, False),
    "huge number": ({"n": 10**5000}, True, False),
    "hostile": (Hostile(a=1), True, False),
}


@pytest.mark.parametrize("name", CASES)
def test_c11_any_result_is_encoded_and_flagged(name: str) -> None:
    result, lossy, native = CASES[name]
    shot = encode(result)
    assert (shot.lossy, shot.native) == (lossy, native)
    assert isinstance(shot.text, str)
    if native and not isinstance(result, str):
        assert shot.text == json.dumps(result, default=str)
    if not lossy and not isinstance(result, str):
        assert shot.text == json.dumps(result, default=str)


def test_c11_a_text_whose_str_raises_is_encoded_too() -> None:
    """A subclass of str is text to `isinstance`, and may still fail to be text."""
    shot = encode(UnprintableText("plain"))
    assert not shot.native
    assert "canary" not in shot.text


def test_c11_a_display_that_has_no_truth_value_does_not_raise() -> None:
    shot = encode({"ok": True, "_display": NoTruth()})
    assert json.loads(shot.text) == {"ok": True}
    assert shot.lossy


def test_c11_stand_ins_say_what_they_stand_for() -> None:
    assert json.loads(encode(cycle()).text) == {"name": "loop", "self": ["[cycle]"]}
    assert json.loads(encode({"a": Unprintable(), "b": 1}).text) == {
        "a": "[unprintable Unprintable]",
        "b": 1,
    }
    assert json.loads(encode({(1, 2): {3}}).text) == {"(1, 2)": [3]}
    assert "[too deep]" in encode(nested(100_000)).text
    assert "canary" not in encode(Unprintable()).text


def test_c11_the_same_value_twice_is_no_cycle() -> None:
    shared = {"x": 1}
    shot = encode({(0,): shared, "b": [shared, shared]})
    assert json.loads(shot.text) == {"(0,)": shared, "b": [shared, shared]}


def test_c11_text_of_20_mb_is_kept_whole_and_longer_text_is_cut_with_a_note() -> None:
    big = "x" * (20 * 1024 * 1024)
    assert encode(big) == Snapshot(big)
    cut = encode("y" * 11, limit=10)
    assert cut.text.startswith("y" * 10 + "…")
    assert "11 characters" in cut.text
    assert (cut.lossy, cut.native) == (True, False)
    assert encode("y" * 10, limit=10) == Snapshot("y" * 10)
    assert len(big) <= MAX_TEXT


def test_display_is_taken_off_and_kept_beside() -> None:
    shot = encode({"ok": 1, "_display": {"kind": "card", "n": 2}})
    assert shot.text == json.dumps({"ok": 1})
    assert shot.display_value() == {"kind": "card", "n": 2}
    assert (shot.lossy, shot.native) == (False, True)


@pytest.mark.parametrize("empty", [None, {}, "", []])
def test_an_empty_display_is_none(empty: Any) -> None:
    shot = encode({"ok": 1, "_display": empty})
    assert (shot.text, shot.display, shot.display_value()) == ('{"ok": 1}', None, None)


@pytest.mark.parametrize("odd", [cycle(), {(1,): 1}, b"x", Unprintable()])
def test_c11_a_display_that_does_not_encode_is_a_flagged_stand_in(odd: Any) -> None:
    shot = encode({"ok": 1, "_display": odd})
    assert (shot.text, shot.lossy, shot.native) == ('{"ok": 1}', True, False)
    assert shot.display is not None
    shot.display_value()


def test_digest_is_of_the_text_alone_and_takes_surrogates() -> None:
    assert Snapshot("a").digest == Snapshot("a", "{}", lossy=True).digest != Snapshot("b").digest
    assert len(Snapshot("\ud800").digest) == 64


KEYS = st.text(st.characters(codec=None)) | st.integers() | st.booleans() | st.none() | st.floats()
LEAVES = (
    KEYS
    | st.binary(max_size=8)
    | st.datetimes()
    | st.decimals()
    | st.just(Unprintable())
    | st.builds(object)
)
ANY = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS | st.tuples(st.integers()) | st.just("_display"), inner, max_size=3)
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=10,
)


@given(ANY, st.integers(0, 200))
def test_c11_encode_never_raises(result: Any, limit: int) -> None:
    shot = encode(result, limit=limit)
    shot.text.encode("utf-8", "surrogatepass")
    if shot.display is not None:
        shot.display_value()
        shot.display.encode("ascii")
    if shot.lossy:
        assert not shot.native


@given(ANY)
def test_g2_native_text_is_the_text_that_the_host_makes(result: Any) -> None:
    shot = encode(result)
    if shot.native:
        if isinstance(result, dict):
            result = {k: v for k, v in result.items() if k != "_display"}
        host = result if isinstance(result, str) else json.dumps(result, default=str)
        assert shot.text == host
    assert encode(shot.text).text == shot.text, "the host, given our text, shows just that"
