"""How often a traced trial looks at the folders of installed packages."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from celedger.child import import_finder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder is Linux's")


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    """A folder of packages, in a process that has the finder."""
    folder = tmp_path / "lib" / "site-packages"
    (folder / "pkg").mkdir(parents=True)
    for name in "abc":
        (folder / "pkg" / f"{name}.py").write_text("")
    (folder / "pkg" / "link.py").symlink_to("a.py")
    with (
        mock.patch.object(os.path, "realpath", os.path.realpath),
        mock.patch.object(sys, "path_hooks", list(sys.path_hooks)),
    ):
        import_finder.install()
        yield folder
    sys.path_importer_cache.clear()


def test_folders_of_packages_are_resolved_once(packages: Path) -> None:
    files = [str(packages / "pkg" / f"{name}.py") for name in "abc"]
    with mock.patch.object(os, "lstat", wraps=os.lstat) as asked:
        assert [os.path.realpath(file) for file in files] == files
    assert asked.call_count <= len(packages.parts) + 2 + 2 * 2


def test_what_is_resolved_is_what_python_resolves(packages: Path, tmp_path: Path) -> None:
    plain = inspect.unwrap(os.path.realpath)
    assert plain is not os.path.realpath
    (tmp_path / "tree").symlink_to(packages)
    names = [
        "a.py",
        "link.py",
        "none.py",
        ".",
        "..",
        "",
        "../pkg/link.py",
        "//a.py",
        "none/../a.py",
    ]
    folders = [packages / "pkg", tmp_path / "tree" / "pkg"]
    paths = [f"{folder}/{name}" for folder in folders for name in names]
    for path in paths * 2:
        assert os.path.realpath(path) == plain(path)
        assert os.path.realpath(os.fsencode(path)) == plain(os.fsencode(path))
        assert os.path.realpath(Path(path)) == plain(Path(path))
    with pytest.raises(FileNotFoundError):
        os.path.realpath(paths[2], strict=True)
