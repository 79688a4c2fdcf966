from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from fast_import import Blob, NewCommit, create

from celedger.base.errors import UnknownRevision
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout, Checkouts

Git = Callable[..., str]


def tree(folder: Path) -> dict[str, object]:
    """What a folder holds, but for .git: contents, executable bits, where links lead."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == ".git" or name.startswith(".git/"):
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def everything(folder: Path) -> str:
    """A hash of a repository with its index, refs and configuration; not celedger's own part."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".git/celedger" not in str(path):
            # git itself touches an object of a borrowed store instead of writing it again.
            stamp = 0 if ".git/objects" in str(path) else path.lstat().st_mtime_ns
            total.update(f"{path} {stamp} ".encode() + path.read_bytes())
    return total.hexdigest()


COMMITS = [
    NewCommit(
        "a", "a", tag="v1",
        files={"x": "1\n", "d/y": "2", "run": Blob(b"#!", "100755"), "l": Blob(b"d", "120000")},
    ),
    NewCommit("b", "b", {"x": None, "d/y": None, "d": "a file now", "odd\n'\"": "3"}),
    NewCommit("c", "c", {"run": "#!", "l": None, "l/in": "4", "d": None, "d/z": "5"}),
    NewCommit("d", "d", {".gitattributes": "*.txt eol=crlf\n", "t.txt": "1\n2\n"}),
    NewCommit("e", "e", {".gitattributes": None, "u": "1"}),
]  # fmt: skip


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


def test_every_move_ends_in_what_a_fresh_clone_would_hold(
    tmp_path: Path, ids: dict[str, str], git: Git
) -> None:
    git(tmp_path, "clone", "-q", "r", "fresh")
    with take(tmp_path) as checkout:
        for key in "abcdedcbadaceb":
            shutil.rmtree(tmp_path / "fresh")
            git(tmp_path, "clone", "-q", "--no-checkout", "r", "fresh")
            git(tmp_path / "fresh", "checkout", "-q", "--detach", ids[key])
            checkout.move_to(ids[key])
            assert tree(checkout.path) == tree(tmp_path / "fresh"), key
            assert checkout.commit == ids[key]


def test_the_users_repository_is_byte_identical_afterwards(
    tmp_path: Path, ids: dict[str, str], git: Git
) -> None:
    hook = tmp_path / "r" / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/fired\n")
    hook.chmod(0o755)
    before = everything(tmp_path / "r")
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        # What code under test might do to what it takes for its own repository.
        git(checkout.path, "tag", "mine")
        git(checkout.path, "checkout", "-q", "-b", "branch")
        git(checkout.path, "commit", "-q", "--allow-empty", "-m", "x")
        git(checkout.path, "config", "core.autocrlf", "true")
        checkout.move_to(ids["e"])
        assert git(checkout.path, "describe") == git(tmp_path / "r", "describe", "main")
    assert everything(tmp_path / "r") == before
    assert not (tmp_path / "fired").exists()
    with take(tmp_path) as checkout:
        assert git(checkout.path, "tag") == "v1"
        assert not git(checkout.path, "branch", "--list", "branch")
        assert "autocrlf" not in (checkout.path / ".git" / "config").read_text()


def test_nothing_of_a_trial_or_build_survives_a_move(tmp_path: Path, ids: dict[str, str]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("1")
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        clean = tree(checkout.path)
        root = checkout.path
        (root / "x").write_text("changed")
        (root / "d" / "y").unlink()
        (root / "d").rmdir()
        (root / "d").symlink_to(outside)  # where a tracked folder was
        (root / "link").symlink_to(outside)
        (root / "nested" / ".git").mkdir(parents=True)
        subprocess.run(["git", "init", "-q", "repo"], cwd=root, check=True)
        (root / "repo" / "f").write_text("1")
        subprocess.run(
            ["git", "commit", "-q", "--allow-empty", "-m", "x"], cwd=root / "repo", check=True
        )
        (root / "empty" / "er").mkdir(parents=True)
        (root / "new\nline").write_text("1")
        subprocess.run(["git", "add", "-f", "repo"], cwd=root, check=True, capture_output=True)
        (root / ".gitignore").write_text("*\n")
        (root / ".gitattributes").write_text("* eol=crlf\n")
        (root / "shut").mkdir()
        (root / "shut" / "f").write_text("1")
        (root / "shut").chmod(0o500)
        os.mkfifo(root / "pipe")
        with socket.socket(socket.AF_UNIX) as server, chdir(root):
            server.bind("socket")  # whole, the path is too long
        checkout.move_to(ids["a"])
        assert not {"pipe", "socket"} & {path.name for path in root.iterdir()}
        assert tree(checkout.path) == clean
    assert (outside / "precious").read_text() == "1"
    assert sorted(p.name for p in outside.iterdir()) == ["precious"]


def test_what_a_trial_hides_from_git_is_undone(
    tmp_path: Path, ids: dict[str, str], git: Git
) -> None:
    for key, value in (("trustctime", "false"), ("checkStat", "minimal"), ("ignoreStat", "true")):
        git(tmp_path / "r", "config", f"core.{key}", value)
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        before = (checkout.path / "d" / "y").stat()
        (checkout.path / "d" / "y").write_text("9")
        os.utime(checkout.path / "d" / "y", ns=(before.st_atime_ns, before.st_mtime_ns))
        checkout.move_to(ids["a"])
        assert (checkout.path / "d" / "y").read_text() == "2"


def test_a_blob_that_is_replaced_is_written_anew(
    tmp_path: Path, ids: dict[str, str], git: Git
) -> None:
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
    (tmp_path / "other").write_text("9")
    other = git(tmp_path / "r", "hash-object", "-w", str(tmp_path / "other"))
    git(tmp_path / "r", "replace", git(tmp_path / "r", "rev-parse", f"{ids['a']}:d/y"), other)
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        assert (checkout.path / "d" / "y").read_text() == "9"


def test_slots_are_taken_by_one_at_a_time_and_given_back(
    tmp_path: Path, ids: dict[str, str]
) -> None:
    first, second = take(tmp_path), take(tmp_path)
    assert first.path.name == "0" and second.path.name == "1"
    first.close()
    with take(tmp_path) as third:
        assert third.path == first.path
    second.close()


@pytest.mark.parametrize(
    "ruin", ["rm -rf .git", "rm .git/HEAD", "echo junk >.git/index", "echo x >.git/config",
             "rm -rf .git/objects", "rm -rf ../0; ln -s /tmp ../0", "rm -rf ../0; touch ../0",
             "touch .git/index.lock .git/HEAD.lock", "echo ref: refs/heads/zz >.git/HEAD",
             "rm -rf .git; mkdir .git"]
)  # fmt: skip
def test_a_slot_in_ruins_is_made_anew(tmp_path: Path, ids: dict[str, str], ruin: str) -> None:
    before = everything(tmp_path / "r")
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        clean = tree(checkout.path)
        subprocess.run(ruin, shell=True, cwd=checkout.path, check=True)
        if "ln -s" not in ruin:
            checkout.move_to(ids["a"])
            assert tree(checkout.path) == clean
            subprocess.run(ruin, shell=True, cwd=checkout.path, check=True)
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        assert tree(checkout.path) == clean
    assert everything(tmp_path / "r") == before


@pytest.mark.matrix
def test_after_any_harm_a_move_ends_in_what_a_clone_would_hold(
    tmp_path: Path, ids: dict[str, str], git: Git
) -> None:
    want = {}
    for key, sha in ids.items():
        git(tmp_path, "clone", "-q", "--no-checkout", "r", key)
        git(tmp_path / key, "checkout", "-q", "--detach", sha)
        want[key] = tree(tmp_path / key)
    rng = random.Random(20)
    with take(tmp_path) as checkout:
        for step in range(30):
            key = rng.choice(list(ids))
            checkout.move_to(ids[key])
            assert tree(checkout.path) == want[key], (step, key)
            for _ in range(rng.randrange(4)):
                harm(checkout.path, rng)


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
        assert (again.path / "x").read_text() == "1\n"


def test_a_commit_that_is_not_there_is_said_so(tmp_path: Path, ids: dict[str, str]) -> None:
    with take(tmp_path) as checkout, pytest.raises(UnknownRevision):
        checkout.move_to("0" * 40)


@pytest.mark.matrix
def test_a_process_killed_in_mid_checkout_leaves_a_slot_that_works(
    tmp_path: Path, git: Git
) -> None:
    files = {f"d{n % 20}/f{n}": f"{n}\n" * 50 for n in range(800)}
    longer = {name: text + "more\n" for name, text in files.items()}
    ids = create(tmp_path / "r", [NewCommit("a", "a", files), NewCommit("b", "b", longer)])
    code = f"""
        from pathlib import Path
        from celedger.repo import Repository
        from celedger.repo.checkouts import Checkouts
        with Checkouts(Repository.open(Path({str(tmp_path / "r")!r}))).take() as checkout:
            while True:
                print("moving", flush=True)
                checkout.move_to({ids["a"]!r})
                checkout.move_to({ids["b"]!r})
    """
    git(tmp_path, "clone", "-q", "r", "fresh")
    want = tree(tmp_path / "fresh")
    for n in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(0.04 * n)  # the moment itself is what varies
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with (Checkouts(Repository.open(tmp_path / "r")).folder / "0.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a git it was just starting ends a moment later
        with take(tmp_path) as checkout:
            assert checkout.path.name == "0"
            checkout.move_to(ids["b"])
            assert tree(checkout.path) == want


def test_shallow_clones_and_sha256_repositories_are_checked_out(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "source", COMMITS)
    git(tmp_path, "clone", "-q", "--depth=2", f"file://{tmp_path}/source", "r")
    with take(tmp_path) as checkout:
        checkout.move_to(git(tmp_path / "r", "rev-parse", "HEAD~1"))
        assert git(checkout.path, "rev-list", "--count", "HEAD") == "1"
    shutil.rmtree(tmp_path / "r")
    ids = create(tmp_path / "r", COMMITS, object_format="sha256")
    assert len(ids["a"]) == 64
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        assert (checkout.path / "x").read_text() == "1\n"


def test_filters_line_endings_and_remotes_are_as_the_user_has_them(
    tmp_path: Path, git: Git
) -> None:
    ids = create(tmp_path / "r", [NewCommit("a", "a", {"t": "1\n", "big": "pointer\n"})])
    for key, value in [
        ("core.autocrlf", "true"), ("filter.up.smudge", "tr a-z A-Z"), ("filter.up.clean", "cat"),
        ("remote.origin.url", "https://example.com/x.git"), ("core.sparseCheckout", "true"),
    ]:  # fmt: skip
        git(tmp_path / "r", "config", key, value)
    info = tmp_path / "r" / ".git" / "info"
    info.mkdir()
    (info / "attributes").write_text("big filter=up\n")
    (info / "sparse-checkout").write_text("t\n")
    with take(tmp_path) as checkout:
        checkout.move_to(ids["a"])
        assert (checkout.path / "t").read_bytes() == b"1\r\n"
        assert (checkout.path / "big").read_bytes() == b"POINTER\r\n"
        assert git(checkout.path, "remote", "get-url", "origin") == "https://example.com/x.git"


def test_files_are_written_anew_where_what_their_filter_reads_has_changed(
    tmp_path: Path, git: Git
) -> None:
    for name, key in (("x", "akey"), ("lfs", ".lfsconfig")):
        root = tmp_path / name
        first = {".gitattributes": f"data filter={name}\n", "data": "V\n", key: "1\n"}
        ids = create(root, [NewCommit("a", "a", first), NewCommit("b", "b", {key: "2\n"}, ("a",))])
        git(root, "config", f"filter.{name}.smudge", f"sed s/V/$(cat {key})/")
        git(root, "config", f"filter.{name}.clean", "sed s/[12]/V/")
        with Checkouts(Repository.open(root)).take() as checkout:
            for commit, value in (("a", "1\n"), ("b", "2\n"), ("a", "1\n")):
                checkout.move_to(ids[commit])
                assert (checkout.path / "data").read_text() == value


def test_what_a_filter_writes_is_the_commits_and_nothing_else_is_written_anew(
    tmp_path: Path, git: Git
) -> None:
    """A filter that reads a file that git writes after its own, and HEAD."""
    root = tmp_path / "r"
    first = {".gitattributes": "data/* filter=x\n", "data/a": "V\n", "model.py": "1\n", "z": "1\n"}
    ids = create(root, [
        NewCommit("a", "a", first), NewCommit("b", "b", {"z": "2\n"}, ("a",)),
        NewCommit("c", "c", {"data/b": "V\n", ".gitattributes": "data/b filter=x\n"}, ("b",)),
    ])  # fmt: skip
    git(root, "config", "filter.x.smudge", "sed s/V/$(cat z)$(git rev-parse HEAD)/")
    git(root, "config", "filter.x.required", "true")
    git(root, "config", "filter.x.clean", "sed s/.*/V/")
    repository = Repository.open(root)
    with Checkouts(repository).take() as checkout:
        for commit, value in (("a", "1"), ("b", "2"), ("a", "1"), ("c", "2"), ("b", "2")):
            model = checkout.path / "model.py"
            came, before = checkout.commit, model.stat().st_ctime_ns if model.exists() else 0
            checkout.move_to(ids[commit])
            written = {p.name: p.read_text() for p in (checkout.path / "data").iterdir()}
            wanted = f"{value}{ids[commit]}\n"
            assert written == ({"a": "V\n", "b": wanted} if commit == "c" else {"a": wanted})
            assert not git(checkout.path, "status", "--porcelain")
            if came in {ids["a"], ids["b"]} and commit != "c":  # the attributes are the same
                assert model.stat().st_ctime_ns == before
    with Checkouts(repository).take() as checkout:  # another process, from where this one left it
        checkout.move_to(ids["a"])
        assert (checkout.path / "data" / "a").read_text() == f"1{ids['a']}\n"


def test_a_filter_that_is_configured_later_writes_the_same_commit_anew(
    tmp_path: Path, git: Git
) -> None:
    """As `git lfs install` after the first trial; and no longer once it is gone."""
    files = {".gitattributes": "*.bin filter=lfs\n", "w.bin": "pointer\n", "model.py": "1\n"}
    ids = create(tmp_path / "r", [NewCommit("a", "a", files)])
    for setting, content in (
        (None, "pointer\n"),
        ("tr a-z A-Z", "POINTER\n"),
        ("cat", "pointer\n"),
    ):
        if setting:
            git(tmp_path / "r", "config", "filter.lfs.smudge", setting)
        with take(tmp_path) as checkout:
            checkout.move_to(ids["a"])
            assert (checkout.path / "w.bin").read_text() == content
            written = (checkout.path / "model.py").stat().st_ctime_ns
        with take(tmp_path) as checkout:
            checkout.move_to(ids["a"])
            assert (checkout.path / "model.py").stat().st_ctime_ns == written


def test_works_from_a_linked_worktree_a_bare_repository_and_a_submodule(
    tmp_path: Path, git: Git
) -> None:
    ids = create(tmp_path / "lib", COMMITS)
    git(tmp_path, "clone", "-q", "--bare", "lib", "bare.git")
    git(tmp_path / "lib", "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    create(tmp_path / "super", [NewCommit("a", "a", {"x": "1"})])
    git(tmp_path / "super", "submodule", "--quiet", "add", str(tmp_path / "lib"), "sub")
    git(tmp_path / "super", "commit", "-q", "-m", "sub")
    for place in ("bare.git", "linked", "super/sub"):
        repository = Repository.open(tmp_path / place)
        with Checkouts(repository).take() as checkout:
            checkout.move_to(ids["a"])
            assert git(checkout.path, "rev-parse", "--show-toplevel") == str(checkout.path)
            assert (checkout.path / "x").read_text() == "1\n"
    parent = Repository.open(tmp_path / "super")
    with Checkouts(parent).take() as checkout:
        checkout.move_to(parent.resolve("HEAD").sha)
        assert list((checkout.path / "sub").iterdir()) == []
        (checkout.path / "sub" / "left").write_text("1")
        checkout.move_to(parent.resolve("HEAD").sha)
        assert list((checkout.path / "sub").iterdir()) == []
