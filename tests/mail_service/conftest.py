"""One mail service for all tests of this folder, empty and obedient before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mail_service.service import Service, running


@pytest.fixture(scope="session")
def _service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("mail")) as service:
        yield service


@pytest.fixture
def service(_service: Service) -> Service:
    _service.tell(do="reset")
    return _service
