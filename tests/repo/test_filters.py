"""Filters, asked of a repository whose own index is the user's."""

from __future__ import annotations

import pytest
from conftest import Project, git

from celedger.repo import Repository, filters


def test_asking_for_filters_leaves_the_users_index_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within git's own hooks the index has a name in the environment."""
    project.commit("one", {".gitattributes": "*.bin filter=odd\n", "a.bin": "1", "b": "1"})
    git(project.root, "config", "filter.odd.smudge", "sed s/1/2/")
    (project.root / "staged").write_text("by the user")
    git(project.root, "add", "staged")
    index = project.root / ".git" / "index"
    before = index.read_bytes()
    monkeypatch.setenv("GIT_INDEX_FILE", str(index))
    repository = Repository.open(project.root)
    tree = repository.resolve("HEAD").tree
    names = filters.configured(repository)
    assert names == {"odd"}
    for path, found in ((b"a.bin", names), (b"b", frozenset())):
        assert filters.applied(repository, tree, [path], names) == found
    assert index.read_bytes() == before
