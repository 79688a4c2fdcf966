from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fast_import import NewCommit, create

from celedger.base.errors import RepositoryError, UnknownRevision, UsageError
from celedger.repo import Repository, scrubbed, spread

Git = Callable[..., str]
LINE = [NewCommit(name, f"commit {name}", {"f": name}) for name in "abcde"]


def test_opens_from_a_subfolder(tmp_path: Path) -> None:
    create(tmp_path / "r", [NewCommit("a", "a", {"deep/er/x": "1"})])
    repository = Repository.open(tmp_path / "r" / "deep" / "er")
    assert repository.root == repository.worktree == tmp_path / "r"
    assert repository.state_dir == tmp_path / "r" / ".git" / "celedger"


def test_opens_from_a_linked_worktree_and_from_inside_dot_git(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "r", LINE)
    git(
        tmp_path / "r", "worktree", "add", "-q", "--detach", str(tmp_path / "linked\nodd"), "HEAD~1"
    )
    linked = Repository.open(tmp_path / "linked\nodd")
    assert linked.root == tmp_path / "r"
    assert linked.worktree == tmp_path / "linked\nodd"
    assert linked.resolve("HEAD").subject == "commit d"
    inside = Repository.open(tmp_path / "r" / ".git" / "refs")
    assert inside.root == inside.worktree == tmp_path / "r"


def test_opens_bare_repositories_and_their_worktrees(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "r", LINE)
    git(tmp_path, "clone", "-q", "--bare", "r", "plain.git")
    git(tmp_path, "clone", "-q", "--bare", "r", "project/.bare")
    for bare, root in (("plain.git", "plain.git"), ("project/.bare", "project")):
        git(tmp_path / bare, "worktree", "add", "-q", str(tmp_path / f"wt-{root}"), "main")
        linked = Repository.open(tmp_path / f"wt-{root}")
        assert linked.root == tmp_path / root
        assert linked.worktree == tmp_path / f"wt-{root}"
        assert Repository.open(tmp_path / bare).resolve("main").subject == "commit e"


def test_opens_a_submodule_and_its_linked_worktree(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "lib", LINE)
    create(tmp_path / "super", [NewCommit("a", "a", {"x": "1"})])
    git(tmp_path / "super", "submodule", "--quiet", "add", str(tmp_path / "lib"), "sub")
    repository = Repository.open(tmp_path / "super" / "sub")
    assert repository.root == tmp_path / "super" / "sub"
    assert repository.common_dir == tmp_path / "super" / ".git" / "modules" / "sub"
    git(tmp_path / "super" / "sub", "worktree", "add", "-q", "--detach", str(tmp_path / "w"))
    assert Repository.open(tmp_path / "w").root == tmp_path / "super" / "sub"


def test_a_hooks_environment_does_not_lead_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "r", LINE)
    create(tmp_path / "other", [NewCommit("a", "other", {"x": "1"})])
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nonsense"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    repository = Repository.open(tmp_path / "r")
    assert repository.root == tmp_path / "r"
    assert repository.resolve("HEAD").subject == "commit e"
    assert not repository.is_dirty()
    assert os.environ["GIT_DIR"]  # ours is scrubbed, the process's own is left alone


def test_scrubbing_keeps_how_servers_are_reached() -> None:
    kept = {"PATH": "x", "GIT_SSH_COMMAND": "ssh", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a"}
    dropped = {
        "GIT_DIR": "x",
        "GIT_CONFIG": "x",
        "GIT_INDEX_FILE": "x",
        "GIT_OBJECT_DIRECTORY": "x",
    }
    assert scrubbed({**kept, **dropped}) == kept


def test_no_repository_and_no_commits_are_said_so(tmp_path: Path, git: Git) -> None:
    with pytest.raises(RepositoryError, match="not in a git repository"):
        Repository.open(tmp_path)
    with pytest.raises(RepositoryError, match="not a folder"):
        Repository.open(tmp_path / "absent")
    git(tmp_path, "init", "-q", "empty")
    with pytest.raises(RepositoryError, match="no commits yet"):
        Repository.open(tmp_path / "empty").resolve("HEAD")
    with pytest.raises(RepositoryError, match="no commits yet"):
        Repository.open(tmp_path / "empty").commits("HEAD~3..HEAD")


ODD = [
    "-dash",
    "--all",
    "a b",
    "q\"uo'te",
    "ü",
    "né\n",
    "",
    "HEAD^@",
    "^HEAD",
    "a..b",
    "x\0y",
    "@{-9}",
]


@pytest.mark.parametrize("revision", ODD)
def test_unknown_revisions_are_one_clear_line(tmp_path: Path, revision: str) -> None:
    create(tmp_path / "r", LINE)
    with pytest.raises(UnknownRevision) as caught:
        Repository.open(tmp_path / "r").resolve(revision)
    assert "\n" not in str(caught.value)


def test_a_close_name_is_proposed_and_other_objects_refused(tmp_path: Path) -> None:
    create(tmp_path / "r", LINE)
    repository = Repository.open(tmp_path / "r")
    with pytest.raises(UnknownRevision, match="did you mean main"):
        repository.resolve("mian~2")
    with pytest.raises(UnknownRevision, match="not a commit"):
        repository.resolve("HEAD^{tree}")
    with pytest.raises(UnknownRevision):
        repository.resolve("HEAD:f")


def test_ambiguous_names_are_refused(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "r", [NewCommit(f"c{n}", f"{n}", {"f": str(n)}) for n in range(40)])
    git(tmp_path / "r", "branch", "both", "HEAD~1")
    git(tmp_path / "r", "tag", "both", "HEAD~2")
    repository = Repository.open(tmp_path / "r")
    with pytest.raises(UnknownRevision, match="write heads"):
        repository.resolve("both")
    assert repository.resolve("heads/both").subject == "38"


def test_tags_that_came_with_a_pull_do_not_hide_head_or_a_hash(tmp_path: Path, git: Git) -> None:
    ids = create(tmp_path / "r", LINE)
    for name in ("HEAD", ids["c"]):
        git(tmp_path / "r", "update-ref", f"refs/tags/{name}", ids["b"])
    repository = Repository.open(tmp_path / "r")
    assert repository.resolve("HEAD").sha == git(tmp_path / "r", "rev-parse", "refs/heads/main")
    assert repository.resolve(ids["c"]).sha == ids["c"]
    assert repository.resolve(f"{ids['c']}~1").subject != repository.resolve(ids["c"]).subject


def test_a_short_hash_is_the_one_commit_that_begins_so(tmp_path: Path, git: Git) -> None:
    ids = create(tmp_path / "r", [NewCommit(f"c{n}", f"{n}", {"f": str(n)}) for n in range(1200)])
    repository = Repository.open(tmp_path / "r")
    heads = [sha[:4] for sha in ids.values()]
    others = {
        line[:4] for line in git(tmp_path / "r", "rev-list", "--all", "--objects").splitlines()
    }
    assert others - set(heads)  # trees and blobs
    twice = next(head for head in heads if heads.count(head) > 1)  # the hashes are always these
    with pytest.raises(UnknownRevision, match="ambiguous"):
        repository.resolve(twice)
    words = git(tmp_path / "r", "rev-list", "--objects", "--all", "--no-object-names").split()
    alone = next(h for h in heads if heads.count(h) == 1 and sum(w[:4] == h for w in words) > 1)
    assert repository.resolve(alone).sha[:4] == alone


def test_branches_with_odd_names_are_revisions(tmp_path: Path, git: Git) -> None:
    ids = create(tmp_path / "r", LINE)
    names = ["-rf", "a'b", 'a"b', "ü/é", "--help", "$(x)"]
    for name in names:
        git(tmp_path / "r", "update-ref", f"refs/heads/{name}", ids["c"])
    repository = Repository.open(tmp_path / "r")
    for name in names:
        assert repository.resolve(name).sha == ids["c"]
        assert [c.subject for c in repository.commits(f"{name}..main")] == ["commit d", "commit e"]
    assert repository.resolve(":/commit b").sha == ids["b"]


def test_of_named_commits_those_that_are_here_are_known(tmp_path: Path) -> None:
    ids = create(tmp_path / "r", LINE)
    repository = Repository.open(tmp_path / "r")
    known = repository.known([ids["c"], "f" * 40, ids["a"]])
    assert [(c.sha, c.subject) for c in known] == [(ids[n], f"commit {n}") for n in "ca"]
    assert repository.known([]) == []


def test_commits_of_any_bytes_are_read(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "r", LINE)
    root = tmp_path / "r"
    raw = b"tree %s\nauthor \xff\xfe\x1f<a@b> 1 +0000\ncommitter C <> 2 -0330\n\n"
    raw += b"\xe9\x01t\xff\n second\n\nbody"
    (root / "raw").write_bytes(raw % git(root, "rev-parse", "HEAD^{tree}").encode())
    sha = git(root, "hash-object", "-t", "commit", "-w", "--literally", "raw")
    commit = Repository.open(root).resolve(sha)
    assert (commit.sha, commit.parents, commit.author_time) == (sha, (), 1)
    assert (
        "\n" not in commit.subject and "t" in commit.subject and commit.subject.endswith("second")
    )
    empty = git(root, "commit-tree", "HEAD^{tree}", "-m", "")
    assert Repository.open(root).resolve(empty).subject == ""


def test_signatures_notes_and_formats_in_the_configuration_change_nothing(
    tmp_path: Path, git: Git
) -> None:
    ids = create(tmp_path / "r", LINE)
    for key, value in [
        ("log.showSignature", "true"), ("format.pretty", "oneline"), ("log.decorate", "full"),
        ("color.ui", "always"), ("log.follow", "true"), ("diff.relative", "true"),
        ("diff.renames", "copies"), ("diff.noprefix", "true"), ("core.quotePath", "true"),
    ]:  # fmt: skip
        git(tmp_path / "r", "config", key, value)
    git(tmp_path / "r", "notes", "add", "-m", "a note", "HEAD")
    repository = Repository.open(tmp_path / "r")
    assert [c.sha for c in repository.commits("HEAD~2..")] == [ids["d"], ids["e"]]
    assert [c.sha for c in repository.log("HEAD", 2)] == [ids["e"], ids["d"]]


def test_ranges_that_mean_nothing_are_usage_errors(tmp_path: Path, git: Git) -> None:
    ids = create(
        tmp_path / "r", [*LINE, NewCommit("s", "side", {"s": "1"}, parents=("b",), tag="side"),
                         NewCommit("z", "tip", {"f": "z"}, parents=("e",))]
    )  # fmt: skip
    git(tmp_path / "r", "commit-tree", "HEAD^{tree}", "-m", "x")
    repository = Repository.open(tmp_path / "r")
    for spec, says in [
        ("main..main", "same commit"), ("main..main~2", "no commits"),
        ("main~2...main", "three dots"),
        ("a..b..c", "not a range"), ("..", "same commit"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=says):
            repository.commits(spec)
    with pytest.raises(UsageError, match="same commit"):
        repository.history("main", "main^{commit}")
    with pytest.raises(UsageError, match="descendant"):
        repository.history("main", "main~2")
    with pytest.raises(UsageError) as caught:
        repository.history("side", "main")
    assert ids["b"][:12] in str(caught.value)
    assert [c.subject for c in repository.commits("side..main")] == [
        "commit c",
        "commit d",
        "commit e",
        "tip",
    ]
    assert [c.subject for c in repository.commits("side")] == ["side"]


def test_a_shallow_clone_says_how_to_go_deeper(tmp_path: Path, git: Git) -> None:
    ids = create(tmp_path / "r", LINE)
    git(tmp_path, "clone", "-q", "--depth=2", f"file://{tmp_path}/r", "s")
    shallow = Repository.open(tmp_path / "s")
    with pytest.raises(UnknownRevision, match="--unshallow"):
        shallow.history(ids["a"], "HEAD")
    git(tmp_path / "s", "fetch", "-q", "--depth=1", "origin", ids["b"])
    with pytest.raises(RepositoryError, match="--unshallow"):
        shallow.history(ids["b"], "HEAD")
    with pytest.raises(RepositoryError, match="--unshallow"):
        shallow.commits(f"{ids['b']}..HEAD")
    assert [c.sha for c in shallow.commits("HEAD~1..HEAD")] == [ids["e"]]


def test_exclude_writes_each_pattern_once(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "r", LINE)
    repository = Repository.open(tmp_path / "r")
    assert repository.exclude(["/ledger.db*", "/.celedger/"]) == ["/ledger.db*", "/.celedger/"]
    assert repository.exclude(["/.celedger/", "/ledger.db*"]) == []
    (tmp_path / "r" / "ledger.db").write_text("")
    assert git(tmp_path / "r", "status", "--porcelain") == ""


def test_dirty_means_tracked_files_differ_and_asking_writes_nothing(tmp_path: Path) -> None:
    create(tmp_path / "r", LINE)
    repository = Repository.open(tmp_path / "r")
    (tmp_path / "r" / "new").write_text("")
    os.utime(tmp_path / "r" / "f")
    before = (tmp_path / "r" / ".git" / "index").read_bytes()
    assert not repository.is_dirty()
    assert (tmp_path / "r" / ".git" / "index").read_bytes() == before
    (tmp_path / "r" / "f").write_text("changed")
    assert repository.is_dirty() and not repository.is_dirty(tmp_path / "r" / "f")


def test_hooks_path_is_absolute_wherever_it_was_set(tmp_path: Path, git: Git) -> None:
    create(tmp_path / "r", LINE)
    repository = Repository.open(tmp_path / "r")
    assert repository.configured_hooks_path() is None
    assert repository.hooks_dir() == tmp_path / "r" / ".git" / "hooks"
    git(tmp_path / "r", "config", "core.hooksPath", "tools/hooks")
    assert repository.configured_hooks_path() == tmp_path / "r" / "tools" / "hooks"


def test_spread_keeps_both_ends(tmp_path: Path) -> None:
    create(tmp_path / "r", LINE)
    commits = Repository.open(tmp_path / "r").commits("HEAD~4..HEAD")
    for steps in range(2, 6):
        chosen = spread(commits, steps)
        assert len(chosen) == min(steps, 4)
        assert (chosen[0], chosen[-1]) == (commits[0], commits[-1])
        assert len(set(chosen)) == len(chosen)
    assert spread(commits, 1) == [commits[-1]]
    with pytest.raises(UsageError):
        spread(commits, 0)


@pytest.mark.matrix
def test_five_thousand_commits_are_listed_with_their_parents(tmp_path: Path) -> None:
    create(tmp_path / "r", [NewCommit(str(n), f"c {n}", {"f": str(n)}) for n in range(5001)])
    repository = Repository.open(tmp_path / "r")
    found = repository.history("HEAD~5000", "HEAD")
    assert len(found.commits) == 5000
    assert found.parents[:3] == ((), (0,), (1,))


def test_files_are_matched_by_glob_at_a_commit(tmp_path: Path) -> None:
    files = {"x.py": "1\n", "d/y.py": "2", "d/e/z": "3"}
    ids = create(tmp_path / "r", [NewCommit("a", "a", files), NewCommit("b", "b", {"x.py": "2\n"})])
    repository = Repository.open(tmp_path / "r")
    assert set(repository.matching(ids["a"], ["*.py"])) == {"x.py"}
    assert set(repository.matching(ids["a"], ["**/*.py"])) == {"x.py", "d/y.py"}
    assert set(repository.matching(ids["a"], ["d", "no-such"])) == {"d/y.py", "d/e/z"}
    assert repository.matching(ids["a"], []) == {}
    assert repository.matching(ids["a"], ["x.py"]) != repository.matching(ids["b"], ["x.py"])
    assert repository.blob(ids["a"], "x.py") == b"1\n"
