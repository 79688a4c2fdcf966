"""Cheap moves: whatever a trial did to the tree, a move ends in what a fresh clone would hold, and
where nothing forbids it, git is asked for one checkout and nothing else."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.repo.fast_import import Blob, NewCommit, create
from celedger.repo.slots import Checkouts

Git = Callable[..., str]

COMMITS = [
    NewCommit("a", "a", {"x.py": "1\n", "d/y.py": "2", "d/e/z": "3", "l": Blob(b"d", "120000")}),
    NewCommit("b", "b", {"d/e/z": "4", "n/new": "1"}),
    NewCommit("c", "c", {"d/y.py": None, "d/e/z": None, "d": "a file", "l": None, "l/in": "1"}),
    NewCommit("d", "d", {"d": None, "d/.gitattributes": "*.txt eol=crlf\n", "d/t.txt": "1\n"}),
    NewCommit("e", "e", {"d/.gitattributes": None, "x.py": "2\n"}),
    NewCommit("f", "f", {".gitattributes": "*.txt eol=crlf\n", "u": "1"}),
]  # fmt: skip


def content(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == ".git" or name.startswith(".git/"):
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_bytes()
    return found


def git_in(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)


def a_file(root: Path, rng: random.Random) -> Path | None:
    found = [p for p in root.rglob("*") if p.is_file() and ".git" not in p.relative_to(root).parts]
    return rng.choice(found) if found else None


def harm(root: Path, rng: random.Random) -> None:
    """One thing that a careless training does."""
    folders = [p for p in root.rglob("*") if p.is_dir() and not p.is_symlink()]
    folders = [root, *(p for p in folders if ".git" not in p.relative_to(root).parts)]
    where, victim = rng.choice(folders), a_file(root, rng)
    match rng.randrange(14):
        case 0:
            (where / f"left{rng.random()}").write_text("x")
        case 1:
            (where / "__pycache__").mkdir(exist_ok=True)
            (where / "__pycache__" / "x.pyc").write_bytes(b"x")
        case 2 if victim is not None:
            stamp = victim.stat()
            victim.write_bytes(b"?" * stamp.st_size)  # same size, same time
            os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        case 3 if victim is not None:
            victim.unlink()
        case 4 if where != root:
            shutil.rmtree(where)
            where.symlink_to("/tmp")
        case 5 if where != root:
            shutil.rmtree(where)
            where.write_text("a file now")
        case 6:
            (where / ".gitattributes").write_text("* eol=crlf\n")
        case 7:
            (where / ".gitignore").write_text("*\n")
        case 8:
            git_in(root, "add", "-A")
        case 9:
            git_in(root, "-c", "user.name=x", "-c", "user.email=x", "commit", "-qam", "x")
        case 10:
            git_in(root, "config", "core.autocrlf", "true")
        case 11 if victim is not None:
            name = str(victim.relative_to(root))
            git_in(root, "update-index", "--assume-unchanged", name)
            victim.write_text("hidden")
        case 12:
            git_in(root, "diff")
        case 13:
            (root / ".git" / "info").mkdir(exist_ok=True)
            (root / ".git" / "info" / "attributes").write_text("* eol=crlf\n")
        case _:
            (where / "empty" / "er").mkdir(parents=True, exist_ok=True)


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, str]:
    return create(tmp_path / "r", COMMITS)


def take(tmp_path: Path) -> Checkout:
    return Checkouts(Repository.open(tmp_path / "r")).take()


def test_after_any_harm_a_move_or_restore_ends_in_what_a_clone_would_hold(
    tmp_path: Path, ids: dict[str, str], git: Git
) -> None:
    want = {}
    for key, sha in ids.items():
        git(tmp_path, "clone", "-q", "--no-checkout", "r", key)
        git(tmp_path / key, "checkout", "-q", "--detach", sha)
        want[key] = content(tmp_path / key)
    rng = random.Random(20)
    restored = 0
    with take(tmp_path) as checkout:
        for step in range(30):
            key = rng.choice(list(ids))
            checkout.move_to(ids[key])
            assert content(checkout.path) == want[key], (step, key)
            build = {}
            if rng.random() < 0.5:
                (checkout.path / "made" / "deep").mkdir(parents=True)
                (checkout.path / "made" / "deep" / "lib").write_text("lib")
                build = {"made": "folder", "made/deep": "folder", "made/deep/lib": b"lib"}
            checkout.seal()
            for _ in range(rng.randrange(4)):
                harm(checkout.path, rng)
            if checkout.restore():
                restored += 1
                assert content(checkout.path) == {**want[key], **build}, (step, key)
                harm(checkout.path, rng)
    assert restored > 20


def test_a_move_asks_git_for_a_checkout_and_nothing_else(
    tmp_path: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        asked: list[str] = []
        ask = Checkout._ask

        def listen(self: Checkout, *words: str, stdin: bytes | None = None) -> object:
            asked.append(words[0])
            return ask(self, *words, stdin=stdin)

        monkeypatch.setattr(Checkout, "_ask", listen)
        (checkout.path / "left").write_text("1")
        (checkout.path / "x.py").write_text("changed")
        (checkout.path / "d" / "e" / "cache").mkdir()
        checkout.move_to(ids["b"])
        checkout.move_to(ids["a"])
        assert asked == ["checkout", "checkout"]
        assert not (checkout.path / "left").exists()
        asked.clear()
        checkout.move_to(ids["d"])  # attributes: every file must be written anew
        assert len(asked) > 1


def test_a_slot_is_removed_only_when_nobody_holds_it(tmp_path: Path, ids: dict[str, str]) -> None:
    slots = Checkouts(Repository.open(tmp_path / "r"))
    with slots.take() as checkout:
        checkout.move_to(ids["a"])
        assert slots.slots() == [(checkout.path, True)]
        assert not slots.remove(checkout.path)
    assert slots.slots() == [(checkout.path, False)]
    assert slots.remove(checkout.path)
    with slots.take() as again:
        again.move_to(ids["a"])
        assert (again.path / "x.py").read_text() == "1\n"


def test_files_are_matched_by_glob_at_a_commit(tmp_path: Path, ids: dict[str, str]) -> None:
    repository = Repository.open(tmp_path / "r")
    assert set(repository.matching(ids["a"], ["*.py"])) == {"x.py"}
    assert set(repository.matching(ids["a"], ["**/*.py"])) == {"x.py", "d/y.py"}
    assert set(repository.matching(ids["a"], ["d", "no-such"])) == {"d/y.py", "d/e/z"}
    assert repository.matching(ids["a"], []) == {}
    assert repository.matching(ids["a"], ["x.py"]) != repository.matching(ids["e"], ["x.py"])
    assert repository.blob(ids["a"], "x.py") == b"1\n"
