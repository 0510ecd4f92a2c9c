"""C24 and G10: the preview of arguments holds no secret, no body, and is one short line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openworker_durable.redact import preview

CANARY = "cnry7Q"
LONG = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="

SECRETS: dict[str, dict[str, Any]] = {
    "bearer header": {"headers": {"Authorization": f"Bearer {CANARY}"}},
    "bearer value": {"extra": f"use Bearer {CANARY} here"},
    "basic value": {"extra": f"Basic {CANARY}dXNlcjpwYXNz"},
    "nested cookie": {"request": {"meta": [{"Cookie": f"sid={CANARY}"}]}},
    "cookies": {"cookies": {"sid": CANARY}},
    "set-cookie": {"Set-Cookie": f"sid={CANARY}"},
    "private key": {"note2": f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END"},
    "private key by name": {"private_key": CANARY},
    "jwt": {"value": f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.sig"},
    "url with credentials": {"url": f"https://user:{CANARY}@example.org/x"},
    "url with a token": {"url": f"https://example.org/x?a=1&access_token={CANARY}"},
    "long base64": {"value": f"{CANARY}{LONG}"},
    "prefixed keys": {"value": f"sk-proj-{CANARY}12345678"},
    "github": {"value": f"ghp_{CANARY}abcdefgh"},
    "password": {"db": {"passwd": CANARY, "PWD": CANARY, "password": CANARY}},
    "token in a list": {"items": [{"accessToken": CANARY}]},
    "raw text": {"_raw": f'{{"token": "{CANARY}'},
    "body": {"body": CANARY, "html": CANARY, "content": CANARY, "message_text": CANARY},
    "body deep": {"mail": {"to": "a", "text": CANARY}},
}

# Forms that a first look misses; each is a way in which real arguments carry a credential.
MORE_SECRETS: dict[str, dict[str, Any]] = {
    "hyphenated key": {"x-api-key": CANARY},
    "hyphenated access key": {"Access-Key": CANARY},
    "api_key in a query": {"url": f"https://example.org/x?api_key={CANARY}"},
    "password in a query": {"url": f"https://example.org/x?q=1&password={CANARY}"},
    "url with only a password": {"url": f"redis://:{CANARY}@example.org/0"},
    "url with a token as user": {"url": f"https://{CANARY}@example.org/repo.git"},
    "cookie line": {"lines": [f"Cookie: sid={CANARY}"]},
    "header line": {"args": ["-H", f"X-Api-Key: {CANARY}"]},
    "assignment": {"dsn": f"host=db user=u password={CANARY}"},
    "secret as a key": {f"Bearer {CANARY}": 1},
    "body as a list": {"content": [CANARY]},
    "body as an object": {"payload": {"greeting": CANARY}},
}


@pytest.mark.parametrize("name", SECRETS)
def test_c24_g10_canary_is_absent(name: str) -> None:
    assert CANARY not in preview(SECRETS[name])


@pytest.mark.parametrize("name", MORE_SECRETS)
def test_c24_g10_canary_is_absent_in_less_usual_forms(name: str) -> None:
    assert CANARY not in preview(MORE_SECRETS[name])


def test_plain_values_are_shown() -> None:
    shown = preview({"to": "bob@example.org", "amount": 10, "urgent": True, "cc": None})
    assert shown == "to: bob@example.org · amount: 10 · urgent: true · cc: null"
    assert preview({"a": {"b": ["x", 1.5]}}) == "a: {b: [x, 1.5]}"
    assert preview({"path": "/home/me/notes.txt"}) == "path: /home/me/notes.txt"


def test_bodies_are_counted_not_shown() -> None:
    assert preview({"to": "bob", "body": "x" * 50}) == "to: bob · body: [50 characters]"


def test_preview_is_one_line() -> None:
    assert "\n" not in preview({"to": "a\nb\r\n c"})
    assert preview({"to": "a\nb"}) == "to: a b"


def test_long_values_deep_values_and_long_lists_are_cut() -> None:
    assert preview({"to": "word " * 40}).endswith("…")
    assert len(preview({"to": "word " * 40})) <= 70
    assert preview({"a": {"b": {"c": {"d": [1]}}}}) == "a: {b: {c: {d: […]}}}"
    assert preview({"a": list(range(9))}) == "a: [0, 1, 2, 3, 4, 5]"


@pytest.mark.parametrize("odd", [None, "text", 3, ["a"], b"x"])
def test_arguments_that_are_no_object_have_no_preview(odd: Any) -> None:
    assert preview(odd) == ""


TEXT = st.text(st.characters(codec=None))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXT, inner, max_size=8),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON, max_size=12))
def test_g10_preview_never_raises_and_is_at_most_240_characters(arguments: Any) -> None:
    assert len(preview(arguments)) <= 240


SECRET_KEYS = st.sampled_from(
    ["token", "Authorization", "client_secret", "PASSWORD", "api_key", "apiKey", "cookie",
     "x_access_key", "credentials", "session_id", "signature", "headers", "auth"]
)  # fmt: skip
SECRET_VALUES = st.sampled_from(
    [f"Bearer {CANARY}", f"https://u:{CANARY}@h/x", f"-----BEGIN KEY {CANARY}", CANARY + LONG,
     f"eyJabcdefghijkl.{CANARY}"]
)  # fmt: skip


def buried(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "request", "list", "to"])
    return st.dictionaries(names, inner, min_size=1, max_size=3) | st.lists(inner, min_size=1)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.recursive(
            st.dictionaries(SECRET_KEYS, st.just(CANARY), min_size=1, max_size=2) | SECRET_VALUES,
            buried,
            max_leaves=6,
        ),
        min_size=1,
    )
)
def test_c24_g10_a_buried_canary_is_absent(arguments: Any) -> None:
    assert CANARY not in preview(arguments)


def test_g10_a_secret_that_the_cut_would_shorten_is_still_seen() -> None:
    """Redaction looks at the whole value, not at what is left of it after the cut."""
    assert CANARY not in preview({"to": CANARY + " word" * 30 + " Bearer abcdefgh"})
