"""The battery of hard searches, as the tests of searches use it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from conftest import load_script


@pytest.fixture(scope="module")
def battery() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "benchmarks" / "hard_worlds.py")
