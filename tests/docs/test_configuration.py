"""The page on configuration: its files mean what it says, and its message is the real one."""

from __future__ import annotations

import re

import pytest

from openworker_durable.config import MAX_ATTEMPTS, MAX_KEY_VALID, settings_from
from openworker_durable.errors import PolicyError
from openworker_durable.policy import idempotent, reconcile
from openworker_durable.validate import MAX_RESULT
from tests.docs.generate import ROOT

PAGE = (ROOT / "docs" / "configuration.md").read_text("utf-8")


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_files_of_the_page_mean_what_it_says() -> None:
    settings = settings_from(fenced("toml")[0].encode())
    issue = "mcp:github/create_issue"
    assert settings.policies == {
        "charge": idempotent(key_valid=86400, attempts=3),
        "gmail_send": reconcile(),
        issue: reconcile(then=idempotent(key_valid=3600), repeatable=True),
    }
    assert settings.outputs[issue]["required"] == ["number"]
    assert settings.sources == {"ops": frozenset({"gmail_send", issue})}


def test_the_mistake_of_the_page_has_the_message_of_the_page() -> None:
    _right, wrong = fenced("toml")
    with pytest.raises(PolicyError) as caught:
        settings_from(wrong.encode())
    assert str(caught.value) == fenced("text")[0].strip()


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_KEY_VALID / 86400:.0f} days" in PAGE
    assert f"at most {MAX_ATTEMPTS}" in PAGE
    assert f"{MAX_RESULT:,}".replace(",", " ") in PAGE


@pytest.mark.parametrize("text", re.findall(r'`"(\d+[smhd])"`', PAGE))
def test_the_times_of_the_page_are_taken(text: str) -> None:
    settings = settings_from(f'[tools.x]\npolicy="idempotent"\nkey_valid="{text}"'.encode())
    assert settings.policies["x"].key_valid > 0
