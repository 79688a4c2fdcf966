"""The cache of what was derived of long histories, in a file that may be deleted at any time."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened(folder: Path) -> Iterator[MutableMapping[str, Any]]:
    yield {}
