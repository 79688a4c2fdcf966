"""The cache of settled stretches of histories: a file for each item, in a folder that may be
deleted at any time. Knows nothing of what an item holds; it checks itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path

from celedger.base import files


class HistoryCache(MutableMapping[str, bytes]):
    """Items by name. One that cannot be read is absent, one that cannot be written is lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        try:
            return self._file(name).read_bytes()
        except OSError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, item: bytes) -> None:
        with suppress(OSError):
            files.replace(self._file(name), item)

    def __delitem__(self, name: str) -> None:
        with suppress(OSError):
            self._file(name).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(())  # names are not kept

    def __len__(self) -> int:
        return 0

    def _file(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]
