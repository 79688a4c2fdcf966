"""A commit is put together again from its parts, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celedger.repo import Repository
from celedger.repo.hunks import CommitParts

Git = Callable[..., str]
LINES = [f"line {n}\n" for n in range(30)]


@pytest.fixture
def parts(tmp_path: Path, git: Git) -> CommitParts:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "-b", "main")
    (root / "text.py").write_text("".join(LINES))
    (root / "ends.py").write_bytes(b"one\r\ntwo\r\nthree")
    (root / "binary").write_bytes(bytes(range(256)))
    (root / "moved.py").write_text("".join(LINES[:20]) + "moved\n")
    (root / "gone.py").write_text("gone\n")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "before")
    lines = list(LINES)
    lines[2] = "changed\n"
    del lines[10:12]
    lines[20:20] = ["new\n", "newer\n"]
    (root / "text.py").write_text("".join(lines))
    (root / "ends.py").write_bytes(b"one\r\n2\r\nthree\n")
    (root / "binary").write_bytes(bytes(range(255, -1, -1)))
    (root / "moved.py").rename(root / "elsewhere.py")
    (root / "gone.py").unlink()
    (root / "tool.sh").chmod(0o755)
    (root / "new.py").write_text("new\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "after")
    repository = Repository.open(root)
    return CommitParts(repository, repository.resolve("HEAD"))


def test_all_parts_make_the_commit_and_none_its_parent(parts: CommitParts) -> None:
    titles = [part.title for part in parts.parts]
    assert [title for title in titles if title.startswith("text.py:")] == [
        "text.py:3", "text.py:10", "text.py:21",
    ]  # fmt: skip
    for title in ("binary", "elsewhere.py", "gone.py", "new.py", "tool.sh"):
        assert titles.count(title) == 1
    assert parts.with_only(range(len(titles))).tree == parts.commit.tree
    assert parts.with_only(()).sha == parts.parent.sha


def test_some_parts_make_a_tree_of_their_own(parts: CommitParts) -> None:
    titles = [part.title for part in parts.parts]
    chosen = {titles.index("text.py:21"), titles.index("elsewhere.py")}
    commit = parts.with_only(chosen)
    repository = parts.store.repository
    text = list(LINES)
    text[22:22] = ["new\n", "newer\n"]
    assert repository.blob(commit.sha, "text.py").decode() == "".join(text)
    names = repository.tell("ls-tree", "-r", "--name-only", commit.sha).text.split()
    assert "elsewhere.py" in names
    assert "moved.py" not in names
    assert "gone.py" in names
    assert parts.with_only(chosen).sha == commit.sha
    for number in range(len(titles)):  # each alone is a tree
        assert parts.with_only({number}).tree != parts.parent.tree
