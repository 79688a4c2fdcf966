from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.edited import TrainingServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingServer]:
    server = TrainingServer(tmp_path_factory.mktemp("trained"))
    yield server
    server.close()
