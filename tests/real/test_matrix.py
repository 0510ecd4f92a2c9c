"""The crash matrix on the real host: all 48 combinations right; alone, most are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import matrix
from tests.real.nursery import Nursery


@pytest.mark.crash
@pytest.mark.parametrize("combination", matrix.ALL, ids=lambda c: c.name)
def test_matrix(nursery: Nursery, tmp_path: Path, combination: matrix.Combination) -> None:
    assert matrix.one(nursery, tmp_path, combination, durable=True) == []


@pytest.mark.crash
@pytest.mark.parametrize("place", ["in_after", "returned", "in_thread"])
def test_the_host_alone_repeats(nursery: Nursery, tmp_path: Path, place: str) -> None:
    combination = matrix.Combination(place, "prompt", 1, "resume")
    problems = matrix.one(nursery, tmp_path, combination, durable=False)
    assert "m0 repeated" in problems
