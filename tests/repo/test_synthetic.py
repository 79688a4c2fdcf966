"""Synthetic revisions, on real repositories of every kind."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from celedger.base.errors import CannotJudge, RepositoryError, UnknownRevision
from celedger.repo import Repository, synthetic, tree_files
from celedger.repo.checkouts import Checkouts
from celedger.repo.synthetic import KEPT, ObjectStore, Synthetic

Git = Callable[..., str]


@pytest.fixture
def root(tmp_path: Path, git: Git) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "-b", "main")
    (root / "package").mkdir()
    (root / "package" / "model.py").write_text("".join(f"line {n}\n" for n in range(20)))
    (root / "train.py").write_text("train\n")
    (root / ".gitignore").write_text("*.log\n")
    commit(git, root, "first")
    return root


def commit(git: Git, root: Path, subject: str) -> str:
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", subject)
    return git(root, "rev-parse", "HEAD")


def working_tree(root: Path) -> Synthetic:
    found = synthetic.find(Repository.open(root), ".")
    assert found is not None
    return found


def files(root: Path, made: Synthetic) -> dict[str, bytes]:
    """Check a synthetic revision out as a trial does; return its files."""
    repository = ObjectStore(Repository.open(root)).repository
    with Checkouts(repository).take() as checkout:
        checkout.move_to(made.commit.sha)
        return {
            str(path.relative_to(checkout.path)): path.read_bytes()
            for path in sorted(checkout.path.rglob("*"))
            if path.is_file() and ".git" not in path.relative_to(checkout.path).parts
        }


def state(root: Path) -> dict[str, tuple[str, int, int]]:
    """Return content, mode and time of every file of the repository but celedger's own."""
    seen = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith(".git/celedger"):
            continue
        status = path.lstat()
        content = b""
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        time = status.st_mtime_ns if name != ".git" else 0  # celedger's folder is made in it
        seen[name] = (hashlib.sha256(content).hexdigest(), status.st_mode, time)
    return seen


def test_the_working_tree_is_what_a_commit_of_all_its_files_would_be(root: Path, git: Git) -> None:
    (root / "package" / "model.py").write_text("edited\n")
    (root / "package" / "new.py").write_text("new\n")
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / 'odd "name\n.py').write_text("odd\n")
    (root / "deep" / "run.sh").write_text("run\n")
    (root / "deep" / "run.sh").chmod(0o755)
    (root / "staged.py").write_text("staged\n")
    git(root, "add", "staged.py")
    (root / "train.py").unlink()
    (root / "ignored.log").write_text("ignored\n")
    (root / "link.py").symlink_to("package/model.py")
    made = working_tree(root)
    git(root, "add", "-A")
    assert made.commit.tree == git(root, "write-tree")
    assert made.left_out == ()
    assert made.commit.subject == f"working tree at {made.base.sha[:10]}"
    assert files(root, made)["package/model.py"] == b"edited\n"


def test_the_users_repository_stays_byte_for_byte_as_it_was(root: Path, git: Git) -> None:
    first = git(root, "rev-parse", "HEAD")
    (root / "package" / "model.py").write_text("later\n")
    commit(git, root, "later")
    git(root, "stash", "list")
    git(root, "gc", "--quiet")
    # What the working tree has now is an object of the history: git would renew its time.
    git(root, "checkout", "--quiet", first, "--", "package/model.py")
    (root / "train.py").write_text("edited\n")
    (root / "new.py").write_text("new\n")
    before = state(root)
    made = working_tree(root)
    culprit = synthetic.find(Repository.open(root), "HEAD-HEAD")
    assert culprit is not None
    assert culprit.commit.tree == git(root, "rev-parse", f"{first}^{{tree}}")
    files(root, made)
    assert state(root) == before


@pytest.mark.parametrize("kind", ["whole", "split", "sparse"])
def test_an_index_of_any_kind_is_read_and_no_time_is_renewed(
    kind: str, root: Path, git: Git
) -> None:
    (root / "other").mkdir()
    (root / "other" / "far.py").write_text("far\n")
    commit(git, root, "other")
    if kind == "split":
        git(root, "update-index", "--split-index")
    if kind == "sparse":
        git(root, "sparse-checkout", "set", "--cone", "--sparse-index", "package")
    (root / "package" / "staged.py").write_text("staged\n")
    git(root, "add", "package/staged.py")
    git(root, "rm", "--quiet", "--cached", "train.py")
    (root / "package" / "meant.py").write_text("not yet\n")
    git(root, "add", "--intent-to-add", "package/meant.py")
    (root / "package" / "model.py").write_text("edited\n")
    for path in (root / ".git").rglob("*"):
        if path.is_file():
            os.utime(path, (1e9, 1e9))
    before = state(root)
    repository = Repository.open(root)
    assert repository.is_dirty()
    working_tree(root)
    made = synthetic.find(repository, ":")
    assert state(root) == before
    assert made is not None
    assert made.commit.tree == git(root, "write-tree")


def test_equal_trees_have_equal_ids_and_heads_own_tree_is_head(root: Path) -> None:
    assert working_tree(root).commit == working_tree(root).base
    (root / "train.py").write_text("edited\n")
    first = working_tree(root)
    assert first.is_changed
    (root / "train.py").write_text("other\n")
    assert working_tree(root).commit != first.commit
    (root / "train.py").write_text("edited\n")
    assert working_tree(root).commit == first.commit


def test_a_folder_may_take_the_place_of_a_file_and_the_reverse(root: Path, git: Git) -> None:
    (root / "train.py").unlink()
    (root / "train.py").mkdir()
    (root / "train.py" / "inside.py").write_text("inside\n")
    (root / "package" / "model.py").unlink()
    (root / "package").rmdir()
    (root / "package").write_text("a file\n")
    made = working_tree(root)
    git(root, "add", "-A")
    assert made.commit.tree == git(root, "write-tree")


def test_what_is_no_part_of_a_commit_is_named_and_left_out(
    root: Path, git: Git, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet", "-b", "main")
    (other / "file").write_text("file\n")
    commit(git, other, "first")
    git(root, "submodule", "add", "--quiet", str(other), "module")
    commit(git, root, "with a submodule")
    (root / "module" / "file").write_text("edited\n")
    (root / "data.bin").write_bytes(b"0" * 2000)
    git(root, "init", "--quiet", "nested")
    (root / "nested" / "file").write_text("file\n")
    (root / "out").symlink_to("/etc/passwd")
    (root / "up").symlink_to("../other/file")
    git(root, "add", "out")
    (root / "train.py").write_text("edited\n")
    monkeypatch.setattr(synthetic, "LARGEST", 1000)
    made = working_tree(root)
    assert [line.partition(":")[0] for line in made.left_out] == [
        "data.bin", "module", "nested/", "out", "up",
    ]  # fmt: skip
    changed = git(root, "diff", "--name-only", "HEAD", "--", "train.py")
    names = ObjectStore(Repository.open(root)).repository.files(made.commit.tree)
    assert changed == "train.py"
    assert names == [b".gitignore", b".gitmodules", b"module", b"package/model.py", b"train.py"]


def test_links_that_lead_in_a_circle_are_taken_as_git_takes_them(root: Path, git: Git) -> None:
    (root / "self").symlink_to("self")
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    made = working_tree(root)
    git(root, "add", "-A")
    assert made.commit.tree == git(root, "write-tree")


def test_files_pass_the_filters_of_a_commit_and_their_store_is_celedgers(
    root: Path, git: Git, tmp_path: Path
) -> None:
    """A filter as Git LFS is one: it keeps the content in a store of its own."""
    clean = tmp_path / "clean.sh"
    clean.write_text(
        '#!/bin/sh\nfolder=$(git config lfs.storage || echo "$(git rev-parse --git-dir)/lfs")\n'
        'mkdir -p "$folder"; cat > "$folder/content"; echo pointer\n'
    )
    clean.chmod(0o755)
    git(root, "config", "filter.lfs.clean", str(clean))
    git(root, "config", "filter.lfs.smudge", "cat")
    (root / ".gitattributes").write_text("*.bin filter=lfs\n*.txt text eol=crlf\n")
    (root / "tracked.bin").write_bytes(b"old")
    commit(git, root, "attributes")
    (root / "tracked.bin").write_bytes(b"new")  # as long: git filters it to see that it differs
    (root / "weights.bin").write_bytes(b"large")
    (root / "notes.txt").write_bytes(b"a\r\nb\r\n")
    before = state(root)
    made = working_tree(root)
    assert state(root) == before
    repository = ObjectStore(Repository.open(root)).repository
    assert repository.blob(made.commit.sha, "weights.bin") == b"pointer\n"
    assert repository.blob(made.commit.sha, "notes.txt") == b"a\nb\n"
    kept = ObjectStore(repository).large_files / "content"
    assert kept.read_bytes() == b"large"


def test_a_file_with_crlf_in_the_index_keeps_it_as_in_a_commit(root: Path, git: Git) -> None:
    (root / "table.csv").write_bytes(b"a\r\n")
    commit(git, root, "table")
    git(root, "config", "core.autocrlf", "true")
    (root / "table.csv").write_bytes(b"a\r\nb\r\n")
    made = working_tree(root)
    git(root, "add", "-A")
    assert made.commit.tree == git(root, "write-tree")


def test_files_that_a_sparse_checkout_skips_are_heads(root: Path, git: Git) -> None:
    (root / "other").mkdir()
    (root / "other" / "far.py").write_text("far\n")
    commit(git, root, "other")
    git(root, "sparse-checkout", "set", "package")
    assert not (root / "other").exists()
    (root / "package" / "model.py").write_text("edited\n")
    made = working_tree(root)
    assert files(root, made)["other/far.py"] == b"far\n"
    assert files(root, made)["package/model.py"] == b"edited\n"


def test_an_unmerged_index_and_a_repository_without_commits_are_one_line(
    root: Path, git: Git, tmp_path: Path
) -> None:
    git(root, "checkout", "--quiet", "-b", "branch")
    (root / "train.py").write_text("branch\n")
    commit(git, root, "branch")
    git(root, "checkout", "--quiet", "main")
    (root / "train.py").write_text("main\n")
    commit(git, root, "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "branch")
    with pytest.raises(RepositoryError, match=r"the index has conflicts: train\.py"):
        working_tree(root)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    with pytest.raises(RepositoryError, match="has no commits yet"):
        working_tree(empty)
    git(empty, "clone", "--quiet", "--bare", str(root), "bare")
    with pytest.raises(RepositoryError, match="bare repository"):
        working_tree(empty / "bare")


def test_a_file_that_changes_while_it_is_read_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = iter([f"text {n}\n" for n in range(10)])
    (root / "train.py").write_text(next(texts))
    added = synthetic._added
    restless = [True]

    def edits(store: ObjectStore, files: object, *options: str) -> object:
        if restless[0]:
            (root / "train.py").write_text(next(texts))
        return added(store, files, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(synthetic, "_added", edits)
    with pytest.raises(RepositoryError, match=r"changes while it is read: train\.py"):
        working_tree(root)
    restless[0] = False
    assert files(root, working_tree(root))["train.py"] == (root / "train.py").read_bytes()


def test_what_the_store_has_is_not_stored_again_and_stays_longer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "train.py").write_text("edited\n")
    made = working_tree(root)
    objects = [p for p in ObjectStore(Repository.open(root)).objects.glob("*/*") if p.is_file()]
    for path in objects:
        os.utime(path, (1e9, 1e9))
    added, options = synthetic._added, []

    def noted(store: ObjectStore, files: object, *words: str) -> object:
        options.append(words)
        return added(store, files, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(synthetic, "_added", noted)
    assert working_tree(root) == made
    assert options == [("--info-only",)]
    assert all(path.stat().st_mtime > 1e9 for path in objects)


def test_a_linked_work_tree_is_the_one_where_you_type(root: Path, git: Git, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "--quiet", "-b", "side", str(linked))
    (linked / "train.py").write_text("linked\n")
    (root / "train.py").write_text("main\n")
    assert files(root, working_tree(linked))["train.py"] == b"linked\n"


def test_objects_are_dropped_after_thirty_days(root: Path) -> None:
    (root / "train.py").write_text("edited\n")
    made = working_tree(root)
    store = ObjectStore(Repository.open(root))
    written = [path for path in store.objects.glob("*/*") if path.is_file()]
    assert written
    newest = max(path.stat().st_mtime for path in written)
    store.drop_old(newest + KEPT - 60)
    assert store.repository.commit(made.commit.sha) == made.commit
    store.drop_old(newest + KEPT + 1)  # a minute later: once a day is enough
    assert store.repository.commit(made.commit.sha) == made.commit
    store.drop_old(newest + KEPT + 86400)
    assert not [path for path in store.objects.glob("*/*") if path.is_file()]


# --- a commit reverted


def edit(root: Path, line: int, text: str) -> None:
    path = root / "package" / "model.py"
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines) + "\n")


def reverted(root: Path, text: str) -> Synthetic:
    found = synthetic.find(Repository.open(root), text)
    assert found is not None
    return found


def test_a_commit_is_reverted_as_git_revert_does(root: Path, git: Git) -> None:
    edit(root, 2, "culprit")
    (root / "added.py").write_text("added\n")
    (root / "train.py").unlink()
    culprit = commit(git, root, "culprit")
    edit(root, 15, "later")
    git(root, "mv", "package", "library")
    head = commit(git, root, "later")
    made = reverted(root, f"HEAD-{culprit[:8]}")
    assert made.commit.subject == f"{head[:10]} without {culprit[:10]}"
    assert made.commit.parents == (head,)
    git(root, "revert", "--no-edit", culprit)
    assert made.commit.tree == git(root, "rev-parse", "HEAD^{tree}")


def test_a_renaming_commit_is_reverted(root: Path, git: Git) -> None:
    git(root, "mv", "package/model.py", "package/network.py")
    culprit = commit(git, root, "rename")
    path = root / "package" / "network.py"
    path.write_text(path.read_text() + "one more\n")
    commit(git, root, "later")
    made = reverted(root, f"HEAD-{culprit}")
    git(root, "revert", "--no-edit", culprit)
    assert made.commit.tree == git(root, "rev-parse", "HEAD^{tree}")


def test_a_conflict_names_the_files(root: Path, git: Git) -> None:
    edit(root, 2, "culprit")
    culprit = commit(git, root, "culprit")
    edit(root, 2, "later")
    commit(git, root, "later")
    with pytest.raises(CannotJudge, match=r"cannot be reverted cleanly on .*: package/model\.py"):
        reverted(root, f"HEAD-{culprit}")


def test_a_merge_is_reverted_against_its_first_parent(root: Path, git: Git) -> None:
    git(root, "checkout", "--quiet", "-b", "branch")
    edit(root, 2, "branch")
    commit(git, root, "branch")
    git(root, "checkout", "--quiet", "main")
    edit(root, 15, "main")
    before = commit(git, root, "main")
    git(root, "merge", "--quiet", "--no-edit", "branch")
    made = reverted(root, "HEAD-HEAD")
    assert made.commit.tree == git(root, "rev-parse", f"{before}^{{tree}}")


def test_what_git_resolves_wins_and_the_last_dash_splits(root: Path, git: Git) -> None:
    first = git(root, "rev-parse", "HEAD")
    edit(root, 2, "culprit")
    commit(git, root, "culprit")
    git(root, "tag", "release-1", first)
    repository = Repository.open(root)
    assert synthetic.find(repository, "release-1") is None
    git(root, "branch", "my-branch")
    assert reverted(root, "my-branch-main").commit.tree == git(
        root, "rev-parse", f"{first}^{{tree}}"
    )
    for text in ("nothing", "main-nothing", "nothing-main", "-main"):
        with pytest.raises(UnknownRevision, match=text):
            synthetic.find(repository, text)


def test_the_working_tree_too_can_be_without_a_commit(root: Path, git: Git) -> None:
    edit(root, 2, "culprit")
    commit(git, root, "culprit")
    edit(root, 15, "edited")
    made = reverted(root, ".-HEAD")
    assert made.commit.subject.startswith("working tree at ")
    assert b"culprit" not in files(root, made)["package/model.py"]
    assert b"edited" in files(root, made)["package/model.py"]


def test_what_links_of_a_folder_lead_to_is_written_with_it(
    root: Path, git: Git, tmp_path: Path
) -> None:
    (root / "shared").mkdir()
    for name in ("deep.py", "common.py"):
        (root / "shared" / name).write_text(f"# {name}\n")
    (root / "shared" / "chained.py").symlink_to("deep.py")
    for name in ("common.py", "chained.py", "nowhere.py"):
        (root / "package" / name).symlink_to(f"../shared/{name}")
    sha = commit(git, root, "links")
    tree = tmp_path / "tree"
    tree.mkdir()
    repository = Repository.open(root)
    assert tree_files.write_committed(repository, sha, ["package"], tree)
    assert (tree / "package" / "common.py").read_text() == "# common.py\n"
    assert (tree / "package" / "chained.py").read_text() == "# deep.py\n"
    assert not (tree / "package" / "nowhere.py").exists()
    (root / "package" / "out.py").symlink_to("../../out.py")
    sha = commit(git, root, "a link out")
    with pytest.raises(RepositoryError, match="is a link that leads out of it"):
        tree_files.write_committed(repository, sha, ["package"], tree)
