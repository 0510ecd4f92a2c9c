"""Names of calls: execution ids, digests, unique call ids, the provider's sidecar."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.identity import (
    MAX_CALL_ID,
    CallRef,
    TornArguments,
    canonical_json,
    covered_digest,
    execution_id,
    intent_digest,
    is_mangled,
    parse_arguments,
    rewrite_ids,
    schema_digest,
    unique_call_ids,
    usable_call_id,
)

TEXT = st.text(st.characters(codec=None))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def counter() -> Any:
    numbers = itertools.count()
    return lambda: f"{next(numbers):024x}" + "0" * 8


# -- execution ids
def test_g6_execution_id_is_stable() -> None:
    one = execution_id("s", "life", "call_0")
    assert one == execution_id("s", "life", "call_0")
    assert re.fullmatch(r"x[0-9a-f]{32}", one)
    assert usable_call_id(one)


def test_g6_execution_id_is_the_one_that_older_records_hold() -> None:
    assert execution_id("s", "life", "call_0") == "x2a12d8ea7a555ac65728b02863d939e0"
    assert intent_digest("pay", {"b": 1, "a": "é"}) == "3d86040660e2e71ae9f5fdd7601468c1c7c00bd4"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c", "d"), ("a", "bc", "d")),
        (("a", "b", ""), ("a", "", "b")),
        (("a:1", "b", "c"), ("a", "1:b", "c")),
        (("s1:x", "", "c"), ("s", "1:x", "c")),
        (("a\x00b", "c", "d"), ("a", "b\x00c", "d")),
        (("1:a", "1:b", "1:c"), ("1:a1:b", "", "1:c")),
    ],
)
def test_g6_execution_id_separators_are_unambiguous(one: Any, other: Any) -> None:
    assert execution_id(*one) != execution_id(*other)


@given(st.tuples(TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT))
def test_g6_execution_ids_differ_when_any_part_does(one: Any, other: Any) -> None:
    assert (execution_id(*one) == execution_id(*other)) is (one == other)


# -- intent digests
def test_g5_intent_digest_ignores_key_order_at_any_depth() -> None:
    one = {"a": {"x": 1, "y": [{"p": 1, "q": 2}]}, "b": 2}
    other = {"b": 2, "a": {"y": [{"q": 2, "p": 1}], "x": 1}}
    assert intent_digest("pay", one) == intent_digest("pay", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 10}, {"n": 10000}),
        ({"n": 1}, {"n": "1"}),
        ({"n": 1}, {"n": True}),
        ({"n": None}, {}),
        ({"n": [1, 2]}, {"n": [2, 1]}),
        ({"n": [1, [2]]}, {"n": [[1], 2]}),
        ({"n": float("nan")}, {"n": "NaN"}),
        ({"n": float("nan")}, {"n": "nan"}),
        ({"n": float("inf")}, {"n": float("-inf")}),
        ({"n": float("inf")}, {"n": "Infinity"}),
        ({"n": "\ud800"}, {"n": "\ufffd"}),
        ({"n": "\ud800"}, {"n": "?"}),
        ({"n": "é"}, {"n": "e\u0301"}),
        ({"n": "\\u00e9"}, {"n": "é"}),
        ({"a.b": 1}, {"a": {"b": 1}}),
    ],
)
def test_g5_intent_digest_sees_every_difference(one: Any, other: Any) -> None:
    assert intent_digest("pay", one) != intent_digest("pay", other)


def test_g5_intent_digest_nan_is_not_the_digest_of_any_json_value() -> None:
    """The tag that stands for NaN is itself a value that arguments can hold."""
    tagged = json.loads(canonical_json({"n": float("nan")}))
    assert intent_digest("pay", {"n": float("nan")}) != intent_digest("pay", tagged)


def test_g5_intent_digest_sees_the_tool() -> None:
    assert intent_digest("send", {"a": 1}) != intent_digest("delete", {"a": 1})
    assert intent_digest("a", "b") != intent_digest('a"b', "")


def test_g5_intent_digest_of_equal_text_written_differently_is_equal() -> None:
    raw = ('{"a": "\\u00e9", "b": 1}', '{"b":1,"a":"é"}')
    one, other = (intent_digest("pay", parse_arguments(r)) for r in raw)
    assert one == other


@given(JSON)
def test_g5_intent_digest_takes_any_json_value_and_is_ascii(value: Any) -> None:
    assert canonical_json(value).isascii()
    assert re.fullmatch(r"[0-9a-f]{40}", intent_digest("pay", {"v": value}))


def test_g13_deeply_nested_arguments_have_a_digest_or_are_torn() -> None:
    """Whatever the model nests, looking at the call must not fail; torn is never run."""
    for depth in (100, 500, 900, 5_000, 200_000):
        raw = '{"a":' + "[" * depth + "]" * depth + "}"
        try:
            value = parse_arguments(raw)
        except TornArguments:
            continue
        assert intent_digest("pay", value)


def test_schema_digest() -> None:
    assert schema_digest({"a": 1, "b": 2}) == schema_digest({"b": 2, "a": 1})
    assert schema_digest({"a": 1}) != schema_digest({"a": 2})
    assert re.fullmatch(r"[0-9a-f]{16}", schema_digest(None))


# -- stored arguments
@pytest.mark.parametrize("raw", ["", "{}", {}, None])
def test_no_arguments_are_an_empty_object(raw: Any) -> None:
    assert parse_arguments(raw) == {}


@pytest.mark.parametrize(
    "raw", ['{"a": 1', '{"a"', "[]", "null", "1", '"{}"', " ", "{'a': 1}", "{}x"]
)
def test_c07_torn_arguments_never_run_as_an_empty_object(raw: str) -> None:
    with pytest.raises(TornArguments):
        parse_arguments(raw)


@given(st.dictionaries(TEXT, JSON, min_size=1, max_size=3), st.data())
def test_c07_arguments_torn_at_any_character_are_torn(value: Any, data: st.DataObject) -> None:
    raw = json.dumps(value)
    with pytest.raises(TornArguments):
        parse_arguments(raw[: data.draw(st.integers(1, len(raw) - 1))])


def test_mangled_is_only_the_stand_in_of_the_host() -> None:
    assert is_mangled({"_raw": '{"a'})
    assert not is_mangled({"_raw": "x", "a": 1})
    assert not is_mangled({})
    assert not is_mangled("_raw")


# -- covered replies
def test_covered_digest_sees_ids_names_arguments_and_order() -> None:
    a, b = CallRef("1", "pay", '{"n": 1}'), CallRef("2", "pay", '{"n": 2}')
    digests = [
        covered_digest(calls)
        for calls in (
            [], [a], [a, b], [b, a], [a._replace(call_id="3")], [a._replace(name="p")],
            [a._replace(arguments='{"n":1}')], [a._replace(arguments='{"n": 1')],
        )
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert covered_digest([a, b]) == covered_digest((a, b))


def test_covered_digest_of_mangled_text_is_one_word() -> None:
    long, short = (CallRef("1", "pay", json.dumps({"_raw": "x" * n})) for n in (500, 20))
    assert covered_digest([long]) == covered_digest([short])
    assert covered_digest([long]) != covered_digest([long._replace(arguments="{}")])
    assert covered_digest([long]) != covered_digest([long._replace(name="other")])


# -- unique call ids
def taken(*ids: str) -> Any:
    return set(ids).__contains__


def test_c03_empty_and_missing_ids_are_replaced() -> None:
    out = unique_call_ids(["", None, "a"], taken(), counter())
    assert out[2] == "a"
    assert len(set(out)) == 3
    assert all(map(usable_call_id, out))


def test_c03_two_calls_that_share_an_id_become_two() -> None:
    out = unique_call_ids(["same", "same", "same"], taken(), counter())
    assert out[0] == "same"
    assert len(set(out)) == 3


def test_c02_an_id_that_is_taken_is_replaced_and_only_that_one() -> None:
    out = unique_call_ids(["call_0", "call_1"], taken("call_0"), counter())
    assert out[1] == "call_1"
    assert out[0] not in ("call_0", "call_1")


def test_c02_a_fresh_id_that_is_taken_as_well_is_not_used() -> None:
    first = "call_" + ("0" * 32)[:24]
    fresh = iter(["0" * 32, "0" * 32, "1" * 32])
    out = unique_call_ids([""], taken(first), lambda: next(fresh))
    assert out == ["call_" + "1" * 24]


@given(st.lists(st.none() | st.sampled_from(["", "call_0", "call_1", "a-b_C9"])), st.data())
def test_c03_unique_call_ids_replace_only_what_they_must(
    ids: list[str | None], data: st.DataObject
) -> None:
    used = data.draw(st.sets(st.sampled_from(["call_0", "call_1", "a-b_C9"])))
    out = unique_call_ids(ids, used.__contains__, counter())
    assert len(out) == len(ids) == len(set(out))
    assert not used & set(out)
    for i, (given_id, call_id) in enumerate(zip(ids, out, strict=True)):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", call_id)
        if given_id and given_id not in used and given_id not in ids[:i]:
            assert call_id == given_id


def test_usable_call_ids() -> None:
    assert usable_call_id("a" * MAX_CALL_ID)
    for bad in ("", "a" * 41, "a b", "a\n", "é", None, 7):
        assert not usable_call_id(bad)


# -- the provider's own copy
def sidecar(*ids: str) -> dict[str, Any]:
    calls = [{"type": "function_call", "call_id": i, "name": "pay", "id": f"fc_{i}"} for i in ids]
    return {"items": [{"type": "reasoning", "id": "r"}, *calls, "odd"], "response_id": "r1"}


def test_c03_rewrite_ids_renames_by_order_even_when_two_items_share_an_id() -> None:
    before = sidecar("same", "same", "c")
    after = rewrite_ids(before, ["same", "same", "c"], ["same", "new", "c"])
    assert after == {**sidecar("same", "new", "c"), "items": [
        *sidecar("same")["items"][:2], {**before["items"][2], "call_id": "new"},
        before["items"][3], "odd",
    ]}  # fmt: skip
    assert before == sidecar("same", "same", "c"), "the original is not touched"


def test_rewrite_ids_leaves_equal_ids_and_other_shapes_alone() -> None:
    before = sidecar("a")
    assert rewrite_ids(before, ["a"], ["a"]) is before
    for odd in (None, "x", [1], {}, {"items": "x"}, {"items": None}):
        assert rewrite_ids(odd, ["a"], ["b"]) == odd


def test_rewrite_ids_with_more_items_than_calls_keeps_the_rest() -> None:
    after = rewrite_ids(sidecar("a", "b"), ["a"], ["n"])
    assert [i["call_id"] for i in after["items"][1:3]] == ["n", "b"]
