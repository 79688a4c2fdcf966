from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fast_import import Blob, NewCommit, create

from celedger.base.errors import RepositoryError

Git = Callable[..., str]


def test_equal_lists_make_equal_hashes_in_any_surroundings(tmp_path: Path, git: Git) -> None:
    commits = [
        NewCommit("a", "a", {"x": b"\0\xff", "run.sh": Blob(b"#!/bin/sh\n", "100755")}, tag="v1"),
        NewCommit("b", "b", {"x": None, "x/inside": "now a folder", 'o"d\\d\n': "1"}),
        NewCommit("s", "side", {"link": Blob(b"run.sh", "120000")}, parents=("a",), author="Ü"),
        NewCommit("m", "merge", {"link": Blob(b"run.sh", "120000")}, parents=("b", "s")),
    ]
    first = create(tmp_path / "one", commits)
    git(tmp_path, "config", "--global", "init.defaultBranch", "trunk")
    git(tmp_path, "config", "--global", "core.autocrlf", "true")
    assert create(tmp_path / "two", commits) == first
    one = tmp_path / "one"
    assert git(one, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(one, "rev-parse", "main") == first["m"]
    assert git(one, "status", "--porcelain") == ""
    assert git(one, "describe", "main").startswith("v1-3-")
    assert (one / "run.sh").stat().st_mode & 0o100
    assert (one / "link").is_symlink()
    assert (one / 'o"d\\d\n').read_text() == "1"
    assert not (tmp_path / "one" / ".git" / "celedger-marks").exists()


def test_a_repository_is_not_made_in_another(tmp_path: Path) -> None:
    create(tmp_path / "r3", [])
    with pytest.raises(RepositoryError, match="already"):
        create(tmp_path / "r3", [])
