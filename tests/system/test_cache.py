"""Entries are made once, never removed while somebody uses them, and the longest unused goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from celedger.system.cache import FACTS, FolderCache, shrink


def filled(size: int) -> Fill:
    return Fill(size)


class Fill:
    """Writes one file and counts how often it was asked to."""

    def __init__(self, size: int) -> None:
        self.size, self.calls = size, 0

    def __call__(self, folder: Path) -> Mapping[str, object]:
        self.calls += 1
        (folder / "data").write_bytes(os.urandom(self.size))
        return {"calls": self.calls}


def test_an_entry_is_made_once_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    cache, fill = FolderCache(tmp_path / "cache"), filled(10)
    assert cache.use("a") is None
    with cache.make("a", fill) as first, cache.make("a", fill) as second:
        assert first.facts == second.facts == {"calls": 1}

    def fail(folder: Path) -> Mapping[str, object]:
        (folder / "half").write_text("1")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.make("b", fail)
    assert [entry.path.name for entry in cache.entries()] == ["a"]


def test_the_longest_unused_goes_first_and_nothing_in_use(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path / "cache")
    for number, key in enumerate("abcd"):
        cache.make(key, filled(100_000)).close()
        os.utime(cache.folder / key / FACTS, (1000 + number, 1000 + number))
    held = cache.use("b")
    assert held is not None
    os.utime(cache.folder / "b" / FACTS, (900, 900))  # the longest unused, but held
    assert shrink([cache], 250_000) > 0
    assert {entry.path.name for entry in cache.entries()} == {"b", "d"}
    assert not cache.drop("b")
    assert (held.path / "data").exists()
    held.close()
    assert cache.drop("b")


def test_a_maker_that_was_killed_leaves_an_entry_that_is_made_anew(tmp_path: Path) -> None:
    code = f"""
        import time
        from pathlib import Path
        from celedger.system.cache import FolderCache
        def fill(folder):
            (folder / "half").write_text("1")
            print("filling", flush=True)
            time.sleep(600)
        FolderCache(Path({str(tmp_path / "cache")!r})).make("a", fill)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "filling\n"
    cache = FolderCache(tmp_path / "cache")
    assert cache.use("a") is None
    assert not cache.drop("a")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with cache.make("a", filled(1)) as held:
        assert not (held.path / "half").exists()
